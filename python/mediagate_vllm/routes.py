"""The attach calls as HTTP routes, for vLLM's server and the stand-in alike.

They authenticate by themselves: vLLM's --api-key guards only its own API. What can be told from HTTP alone is refused
here (content type, size, proxies); all else is the door's to decide.
"""

import asyncio
import ipaddress
import logging
import math
import time
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from . import probe
from .door import CALLS, PROBE
from .errors import STATUS, Refused, error_body
from .landing import Landing

MAX_BODY_BYTES = 64 << 10
MAX_PROBE_BYTES = 2 << 20
BODY_TIMEOUT_SECONDS = 10.0
DENIAL_LOG_SECONDS = 10.0
MAC_HEADER = "x-mediagate-mac"
PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
BROWSER_HEADER = "origin"

log = logging.getLogger("vllm.mediagate")


def attach_routes(landing: Callable[[], Landing | None]) -> APIRouter:
    """`landing` gives this process's, or None while there is none."""
    denials = Denials(time.monotonic)

    async def call(path: str, request: Request) -> Response:
        try:
            body = await _body(request, MAX_PROBE_BYTES if path == PROBE else MAX_BODY_BYTES)
            if (here := landing()) is None:
                raise Refused("late", "no lander is up")
            mac, is_local = request.headers.get(MAC_HEADER, ""), _is_local(request)
            if path == PROBE:
                answer = await probe.answer(here, body, mac, is_local=is_local)
            else:
                answer = await here.call(path, _text(body), mac, is_local=is_local)
        except Refused as e:
            status = 400 if e.kind == "bad" else STATUS[e.kind]
            if e.kind == "denied":
                denials.told(e, request.client.host if request.client else "an unknown peer")
            return JSONResponse(error_body(str(e), e.kind, status), status)
        headers = {MAC_HEADER: answer.mac} if answer.mac else {}
        return Response(answer.body, media_type="application/json", headers=headers)

    def endpoint(path: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return await call(path, request)

        return answer

    router = APIRouter()
    for path in (*CALLS, PROBE):
        router.add_api_route(path, endpoint(path), methods=["POST"], include_in_schema=False, response_model=None)
    return router


class Denials:
    """Tells the log who was denied, but not of each call: whoever reaches the port could fill the disk."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._quiet_until = -math.inf
        self._untold = 0

    def told(self, refusal: Refused, peer: str) -> None:
        if (now := self._clock()) < self._quiet_until:
            self._untold += 1
            return
        more = f" ({self._untold} more since the last such line)" if self._untold else ""
        log.warning("%s; the peer was %s%s", refusal, peer, more)
        self._quiet_until, self._untold = now + DENIAL_LOG_SECONDS, 0


async def _body(request: Request, max_bytes: int) -> bytes:
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise Refused("bad", "content-type must be application/json")
    body = bytearray()

    async def read() -> None:
        async for piece in request.stream():
            body.extend(piece)
            if len(body) > max_bytes:
                raise Refused("bad", f"the body is larger than {max_bytes} bytes")

    try:
        await asyncio.wait_for(read(), BODY_TIMEOUT_SECONDS)
        return bytes(body)
    except asyncio.TimeoutError:
        raise Refused("bad", "the body did not arrive in time") from None


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise Refused("bad", "the body is not UTF-8") from None


def _is_local(request: Request) -> bool:
    """From this machine, by no browser, and by no proxy that says so. A silent one cannot be told from a gateway."""
    if request.client is None or any(name in request.headers for name in (*PROXY_HEADERS, BROWSER_HEADER)):
        return False
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
