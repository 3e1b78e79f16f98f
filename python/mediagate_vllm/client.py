"""An API process as the lander sees it: what it asks for, and which claims it holds until it goes away."""

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from . import wire
from .book import Claim, Place
from .errors import Refused

if TYPE_CHECKING:
    from .lander import Lander

MAX_CLAIMS = 8192

log = logging.getLogger("mediagate.lander")


class Client(wire.Frames):
    def __init__(self, lander: "Lander") -> None:
        self._lander = lander
        self._claims: dict[int, Claim] = {}
        self._calls: set[asyncio.Task[None]] = set()

    def received(self, message: wire.Message) -> None:
        op, ident = message["op"], message["id"]
        if op == "claim":
            self._claim(ident, message["reference"])
        elif op == "copied" and ident in self._claims:
            self._lander.book.copied(self._claims.pop(ident))
        elif op == "give_up" and ident in self._claims:
            self._lander.book.give_up(self._claims.pop(ident))
        elif op == "call":
            task = asyncio.get_running_loop().create_task(self._call(message))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    def lost(self) -> None:
        """The process is gone: nobody copies for it any more."""
        for claim in self._claims.values():
            self._lander.book.give_up(claim)
        self._claims.clear()
        for task in self._calls:
            task.cancel()

    def _answer(self, ident: int, **fields: Any) -> None:
        self.send({"id": ident, **fields})

    def _claim(self, ident: int, reference: str) -> None:
        def settle(outcome: Place | Refused) -> None:
            if isinstance(outcome, Refused):
                self._claims.pop(ident, None)
                self._answer(ident, refused=[outcome.kind, outcome.message])
            else:
                self._answer(ident, ok=outcome)

        try:
            if len(self._claims) >= MAX_CLAIMS:
                raise Refused("late", "too many claims")
            self._claims[ident] = claim = self._lander.book.claim(reference, settle, time.monotonic())
        except Refused as refusal:
            settle(refusal)
            return
        if claim in self._lander.book.waiting:
            self._lander.hurry()

    async def _call(self, message: wire.Message) -> None:
        ident = message["id"]
        try:
            door = self._lander.door
            answer = await door.call(message["path"], message["body"], message["mac"], message["local"])
            self._answer(ident, ok={"body": answer.body, "mac": answer.mac})
        except Refused as refusal:
            self._answer(ident, refused=[refusal.kind, refusal.message])
        except Exception:
            log.exception("call of %s failed", message["path"])
            self._answer(ident, refused=["late", "the lander failed"])
