"""The stand-in's HTTP surface: the part of vLLM's OpenAI server that a gateway uses."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from .. import __version__, references
from ..content import content_hash
from ..errors import STATUS, Refused, error_body
from ..landing import Landing
from ..routes import attach_routes
from ..settings import Settings
from ..supervisor import Supervisor
from . import images
from .cache import Facts, UuidCache
from .surfaces import SURFACES, Messages, Responses

ERROR_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    409: "Conflict",
    410: "Gone",
    422: "UnprocessableEntityError",
    503: "ServiceUnavailableError",
}
CHUNK_CHARACTERS = 64


@dataclass(frozen=True)
class Options:
    model: str
    nixl: bool
    allow_http: bool
    cache_items: int
    cache_bytes: int
    image_processor: dict[str, Any] | None = None
    """What it claims of an image processor. It has none: what it sees are the pixels as they came."""
    keeps_responses: bool = False
    """Whether it claims to keep responses. It does not."""


class Failure(Exception):
    """An answer other than 200, worded as vLLM would."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        self.status, self.message, self.param = status, message, param


class Standin:
    def __init__(self, options: Options, settings: Settings) -> None:
        self.options = options
        self.cache = UuidCache(options.cache_items, options.cache_bytes)
        self.running = 0
        self.landing: Landing | None = None
        self._settings = settings

    @asynccontextmanager
    async def up(self, _: FastAPI) -> AsyncIterator[None]:
        if not self.options.nixl:
            yield
            return
        name = f"\0mediagate/standin/{uuid4().hex}"
        supervisor = Supervisor(self._settings, name, self._about())
        self.landing = Landing(name)
        supervisor.start()
        self.landing.start()
        yield
        await self.landing.stop()
        await supervisor.stop()

    def _about(self) -> dict[str, Any]:
        return {
            "models": [self.options.model],
            "api_processes": 1,
            "processor_cache": {"kind": "lru", "bytes": self.options.cache_bytes},
            "image_processor": self.options.image_processor,
            "keeps_responses": self.options.keeps_responses,
            "engine": {"name": "standin", "version": __version__},
        }

    async def see(self, index: int, part: dict[str, Any]) -> dict[str, Any]:
        """What one image part shows, as the model would see it: a known uuid wins over what came with it."""
        source, uuid = part.get("image_url"), part.get("uuid")
        url = source.get("url") if isinstance(source, dict) else source
        if url is not None and not isinstance(url, str):
            raise Failure(400, "image_url must be a string or have one as url")
        if url is None:
            known = self.cache.get(uuid) if isinstance(uuid, str) else None
            if known is None:
                raise Failure(400, f"Cache miss for image at index {index} but data is not provided.")
            return {**asdict(known), "transfer": "uuid"}
        # vLLM fetches what a request carries before it looks into its cache.
        facts, transfer = await self._load(url)
        if isinstance(uuid, str):
            facts = self.cache.get(uuid) or facts
            self.cache.put(uuid, facts)
        return {**asdict(facts), "transfer": transfer}

    async def _load(self, url: str) -> tuple[Facts, str]:
        if url.startswith(references.SCHEME) and self.options.nixl:
            if self.landing is None:
                raise Failure(410, "mediagate gone: no lander is up")
            try:
                pixels = await self.landing.take(url)
            except Refused as e:
                raise Failure(STATUS[e.kind], str(e), "image_url" if e.kind == "bad" else None) from None
            sha256 = await asyncio.to_thread(_sha256, pixels.data)
            return Facts(pixels.height, pixels.width, pixels.content_hash, sha256), "push"
        if url.startswith(("http://", "https://")) and not self.options.allow_http:
            raise Failure(400, "an http URL reached this worker, and it was told to refuse them")
        if not url.startswith(("data:", "http://", "https://")):
            raise Failure(400, "The URL must be either a HTTP, data or file URL.")
        try:
            return await asyncio.to_thread(_decode, url), "original"
        except ValueError as e:
            raise Failure(400, str(e)) from None


def _decode(url: str) -> Facts:
    encoded = images.encoded_bytes(url) if url.startswith("data:") else images.fetch(url)
    pixels, height, width = images.decode(encoded)
    return Facts(height, width, content_hash(pixels, height, width), _sha256(pixels))


def _sha256(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


def _image_parts(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Failure(400, "messages must be a list that is not empty")
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else []:
            if isinstance(part, dict) and (part.get("type") == "image_url" or "image_url" in part):
                yield part


def _failed(failure: Failure) -> Response:
    kind = ERROR_TYPES.get(failure.status, "Error")
    return JSONResponse(error_body(failure.message, kind, failure.status, failure.param), failure.status)


async def _while_connected(request: Request, work: "asyncio.Future[list[dict[str, Any]]]") -> list[dict[str, Any]]:
    """As in vLLM, a client that leaves ends the work on its request."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.ensure_future(left())
    try:
        await asyncio.wait({leaving, work}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
            with suppress(asyncio.CancelledError):
                work.exception()
            raise Failure(499, "the client left")
        return work.result()
    finally:
        leaving.cancel()


async def _stream(head: dict[str, Any], text: str) -> AsyncIterator[str]:
    def chunk(delta: dict[str, str], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"

    yield chunk({"role": "assistant", "content": ""})
    for at in range(0, len(text), CHUNK_CHARACTERS):
        yield chunk({"content": text[at : at + CHUNK_CHARACTERS]})
    yield chunk({}, "stop")
    yield "data: [DONE]\n\n"


def build(options: Options, settings: Settings) -> FastAPI:
    standin = Standin(options, settings)
    app = FastAPI(lifespan=standin.up, docs_url=None, redoc_url=None, openapi_url=None)
    if options.nixl:
        app.include_router(attach_routes(lambda: standin.landing))

    async def read(request: Request) -> dict[str, Any]:
        try:
            body = json.loads(await request.body())
        except ValueError:
            raise Failure(400, "the body is not JSON") from None
        if not isinstance(body, dict):
            raise Failure(400, "the body must be a JSON object")
        if body.get("model") not in (None, options.model):
            raise Failure(404, f"The model `{body['model']}` does not exist.")
        return body

    async def look(request: Request, parts: Iterator[dict[str, Any]]) -> str:
        """What the images show, as the text of an answer."""
        standin.running += 1
        try:
            seeing = [standin.see(i, part) for i, part in enumerate(parts)]
            return json.dumps({"images": await _while_connected(request, asyncio.gather(*seeing))})
        finally:
            standin.running -= 1

    def serve(surface: Responses | Messages) -> None:
        @app.post(surface.path, response_model=None)
        async def answer(request: Request) -> Response:
            try:
                text = await look(request, surface.images(await read(request)))
            except Failure as failure:
                kind = ERROR_TYPES.get(failure.status, "Error")
                refusal = surface.refusal(failure.message, kind, failure.status, failure.param)
                return JSONResponse(refusal, failure.status)
            return JSONResponse(surface.answer(options.model, text))

    for surface in SURFACES:
        serve(surface)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: Request) -> Response:
        try:
            body = await read(request)
            text = await look(request, _image_parts(body))
        except Failure as failure:
            return _failed(failure)
        head = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": options.model}
        if body.get("stream"):
            return StreamingResponse(_stream(head, text), media_type="text/event-stream")
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        usage = {"prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0}
        return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": usage})

    @app.get("/v1/models", response_model=None)
    async def models() -> Response:
        model = {"id": options.model, "object": "model", "created": 0, "owned_by": "mediagate"}
        return JSONResponse({"object": "list", "data": [model]})

    @app.get("/health", response_model=None)
    async def health() -> Response:
        return Response()

    @app.get("/version", response_model=None)
    async def version() -> Response:
        return JSONResponse({"version": __version__})

    @app.get("/metrics", response_model=None)
    async def metrics() -> Response:
        return PlainTextResponse(
            f"vllm:num_requests_running {standin.running}\n"
            f"vllm:num_requests_waiting 0\n"
            f"vllm:mm_cache_queries_total {standin.cache.queries}\n"
            f"vllm:mm_cache_hits_total {standin.cache.hits}\n"
        )

    return app
