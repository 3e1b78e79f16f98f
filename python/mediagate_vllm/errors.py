"""What can be wrong with a call or a reference, in the five kinds that docs/PROTOCOL.md knows."""

from typing import Literal

Kind = Literal["bad", "denied", "stale", "gone", "late"]

STATUS: dict[Kind, int] = {"bad": 422, "denied": 403, "stale": 409, "gone": 410, "late": 503}
"""HTTP status of each kind for a reference. A malformed attach call that is `bad` answers 400 instead."""


class Refused(Exception):
    """A refusal that reaches the gateway, which decides by `kind` what to do next."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(kind, message)
        self.kind: Kind = kind
        self.message = message

    def __str__(self) -> str:
        return f"mediagate {self.kind}: {self.message}"


def error_body(message: str, kind: str, status: int, param: str | None = None) -> dict[str, object]:
    """An error as vLLM's OpenAI server words it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}
