"""The surfaces that show images: where they stand in a request, and how an answer and a refusal look."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from ..errors import error_body


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    yield from (element for element in (value if isinstance(value, list) else []) if isinstance(element, dict))


@dataclass(frozen=True)
class Responses:
    """OpenAI's Responses API: parts of messages and of what tools gave."""

    path: str = "/v1/responses"

    def images(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for item in _dicts(body.get("input")):
            for held in (item.get("content"), item.get("output")):
                yield from (part for part in _dicts(held) if part.get("type") == "input_image")

    def answer(self, model: str, text: str) -> dict[str, Any]:
        message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
        return {"id": f"resp_{uuid4().hex}", "object": "response", "model": model, "output": [message]}

    def refusal(self, message: str, kind: str, status: int, param: str | None) -> dict[str, Any]:
        return error_body(message, kind, status, param)


@dataclass(frozen=True)
class Messages:
    """Anthropic's messages: blocks with a source, which vLLM makes a URL of, and no uuid."""

    path: str = "/v1/messages"

    def images(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for message in _dicts(body.get("messages")):
            for block in _dicts(message.get("content")):
                inner = _dicts(block.get("content")) if block.get("type") == "tool_result" else ()
                for image in (block, *inner):
                    if image.get("type") == "image" and isinstance(source := image.get("source"), dict):
                        yield {"image_url": self._url(source)}

    @staticmethod
    def _url(source: dict[str, Any]) -> Any:
        if source.get("type") == "url":
            return source.get("url", "")
        return f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"

    def answer(self, model: str, text: str) -> dict[str, Any]:
        content = [{"type": "text", "text": text}]
        return {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant", "model": model, "content": content}

    def refusal(self, message: str, kind: str, status: int, param: str | None) -> dict[str, Any]:
        return {"type": "error", "error": {"type": kind, "message": message}}


SURFACES = (Responses(), Messages())
