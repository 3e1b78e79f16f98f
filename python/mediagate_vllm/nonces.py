"""Nonces of the attach handshake, without remembering those that were only asked for.

A hello costs the lander no memory, however many arrive: the nonce itself says when and for whom it was made, under a
key that dies with this process. Only nonces that an authenticated attach has used are kept, until they are too old.
"""

import secrets
from collections.abc import Callable

from .errors import Refused
from .macs import mac, same

LIFETIME_SECONDS = 10.0
MAX_USED = 4096
_STAMP_DIGITS, _SALT_DIGITS = 16, 16


class Nonces:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._used: dict[str, float] = {}  # in order of use: nonce -> when it would have died anyway

    def make(self, gateway: str, nonce: str) -> str:
        """A worker nonce (64 hex digits) for the gateway that said `nonce`."""
        head = f"{int(self._clock() * 1000):0{_STAMP_DIGITS}x}{secrets.token_hex(_SALT_DIGITS // 2)}"
        return head + self._tag(head, gateway, nonce)

    def use(self, worker_nonce: str, gateway: str, nonce: str) -> None:
        """Spend it, once, or refuse."""
        now = self._clock()
        while self._used and (first := next(iter(self._used.items())))[1] <= now:
            del self._used[first[0]]
        head, tag = worker_nonce[: _STAMP_DIGITS + _SALT_DIGITS], worker_nonce[_STAMP_DIGITS + _SALT_DIGITS :]
        if not same(self._tag(head, gateway, nonce), tag):
            raise Refused("denied", "the worker nonce is not one of ours for this gateway")
        expires = int(head[:_STAMP_DIGITS], 16) / 1000 + LIFETIME_SECONDS
        if now >= expires:
            raise Refused("denied", "the worker nonce has expired")
        if worker_nonce in self._used:
            raise Refused("denied", "the worker nonce was used before")
        if len(self._used) >= MAX_USED:
            raise Refused("late", "too many attaches")
        self._used[worker_nonce] = expires

    def _tag(self, head: str, gateway: str, nonce: str) -> str:
        return mac(self._key, "mediagate worker nonce", head, gateway, nonce)[:32]
