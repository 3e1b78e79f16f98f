"""Who may come in: the calls by which a gateway attaches, measures, stays and leaves (docs/PROTOCOL.md, HTTP calls).

The API processes bring a call's path, body and MAC as they came, and whether its peer is on this machine. Everything
that decides is here, in one process, because nonces are used once and keys belong to grants. No field of a body is
believed before its MAC has been found right; only hello has none.
"""

import asyncio
import base64
import binascii
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from .book import Book, Grant
from .errors import Refused
from .host import whereabouts
from .macs import grant_key, mac, same
from .nonces import Nonces

PROTOCOL = 2
PREFIX = "/mediagate/attach"
CALLS = (PREFIX + "/hello", PREFIX, "/mediagate/renew", "/mediagate/void", "/mediagate/detach")
PROBE = "/mediagate/probe"
"""What the API process answers itself (`probe`), if the door finds the MAC right."""
MAX_METADATA_BYTES = 32 << 10
VOID_PATIENCE_SECONDS = 2.0

_INCARNATION = re.compile("[0-9a-f]{16}")
_NONCE = re.compile("[0-9a-f]{64}")
_AGENT = re.compile("[!-~]{1,128}")


class Transport(Protocol):
    """What the door needs of the NIXL agent and the memory."""

    name: str

    def add_peer(self, metadata: bytes) -> str: ...
    def forget_peer(self, name: str) -> None: ...
    def open(self, grant: Grant) -> tuple[int, bytes]:
        """Register the grant's range; its address, and the metadata that lets a peer write there and nowhere else."""
        ...


@dataclass(frozen=True)
class Answer:
    body: str
    mac: str | None = None


class Door:
    def __init__(
        self,
        book: Book,
        transport: Transport,
        *,
        secret_key: bytes,
        has_secret: bool,
        about: dict[str, Any],
        clock: Callable[[], float],
    ) -> None:
        self._book, self._transport, self._clock = book, transport, clock
        self._secret_key, self._has_secret = secret_key, has_secret
        self._about = about  # models, api_processes, ...: what the attach answer says of this worker
        self._nonces = Nonces(clock)

    async def call(self, path: str, body: str, given_mac: str, is_local: bool) -> Answer:
        if not self._has_secret and not is_local:
            raise Refused("denied", "without an attach key only gateways on this machine may attach")
        if path == PREFIX + "/hello":
            return self._hello(_object(body))
        if path == PREFIX:
            return self._attach(body, given_mac)
        if path == PROBE:
            return self._probe(_object(body), given_mac)
        grant, fields = self._of_grant(path, body, given_mac)
        if path == "/mediagate/renew":
            self._book.renew(grant, _natural(fields, "seq"), self._clock())
            return _answer({"lease_seconds": self._book.lease_seconds})
        if path == "/mediagate/void":
            return await self._void(grant, fields)
        if path == "/mediagate/detach":
            self._book.retire(grant, self._clock())
            return _answer({"detached": True})
        raise Refused("bad", "no such call")

    def _hello(self, fields: dict[str, Any]) -> Answer:
        _check_protocol(fields)
        gateway, nonce = _text(fields, "gateway", _INCARNATION), _text(fields, "nonce", _NONCE)
        worker, worker_nonce = self._book.worker, self._nonces.make(gateway, nonce)
        proof = mac(self._secret_key, "mediagate worker v1", gateway, nonce, worker, worker_nonce)
        return _answer({"protocol": PROTOCOL, "worker": worker, "nonce": worker_nonce, "proof": proof})

    def _attach(self, body: str, given_mac: str) -> Answer:
        if not same(mac(self._secret_key, "mediagate gateway v1", PREFIX, body), given_mac):
            raise Refused("denied", "the MAC does not fit the attach key")
        fields = _object(body)
        _check_protocol(fields)
        gateway, nonce = _text(fields, "gateway", _INCARNATION), _text(fields, "nonce", _NONCE)
        worker_nonce, agent = _text(fields, "worker_nonce", _NONCE), _text(fields, "agent", _AGENT)
        metadata, want_bytes = _base64(fields, "metadata"), _natural(fields, "want_bytes")
        worker = self._book.worker
        if fields.get("worker") != worker:
            raise Refused("gone", "this worker has another incarnation")
        self._nonces.use(worker_nonce, gateway, nonce)

        key = grant_key(self._secret_key, gateway, nonce, worker, worker_nonce)
        self._meet(agent, metadata)
        try:
            grant = self._book.grant(gateway, agent, key, want_bytes, self._clock())
        except Refused:
            self._forget(agent)
            raise
        try:
            address, ours = self._transport.open(grant)
        except Exception as e:  # as many kinds as NIXL has of failing
            self._book.retire(grant, self._clock())
            raise Refused("late", f"NIXL could not register the grant: {type(e).__name__}") from e
        text = _dump({
            "protocol": PROTOCOL,
            "worker": worker,
            "agent": self._transport.name,
            "metadata": base64.b64encode(ours).decode(),
            "grant": {"id": grant.id, "address": address, "bytes": grant.range.length},
            "lease_seconds": self._book.lease_seconds,
            "whereabouts": whereabouts(key),
            **self._about,
        })  # fmt: skip
        return Answer(text, mac(key, "mediagate answer v1", text))

    def _probe(self, fields: dict[str, Any], given_mac: str) -> Answer:
        """The picture itself stays with the API process; here only its digest counts."""
        grant = self._book.find(fields.get("worker"), fields.get("grant"))
        if not same(mac(grant.key, "mediagate probe v1", str(fields.get("digest"))), given_mac):
            raise Refused("denied", "the MAC does not fit the grant")
        return Answer("{}")

    def _meet(self, agent: str, metadata: bytes) -> None:
        try:
            name = self._transport.add_peer(metadata)
        except Exception as e:  # NIXL has an exception for each way in which metadata can be wrong
            raise Refused("bad", f"the metadata is not NIXL's: {type(e).__name__}") from e
        if name != agent:
            self._forget(name)
            raise Refused("bad", "the metadata is of another agent")

    def _forget(self, agent: str) -> None:
        """What a refused attach has left in NIXL, unless the agent is there in its own right."""
        if not self._book.knows(agent):
            self._transport.forget_peer(agent)

    def _of_grant(self, path: str, body: str, given_mac: str) -> tuple[Grant, dict[str, Any]]:
        """The grant that a call names. Only with its key can the MAC be checked, so two fields are read before."""
        fields = _object(body)
        grant = self._book.find(fields.get("worker"), fields.get("grant"))
        if not same(mac(grant.key, "mediagate call v1", path, body), given_mac):
            raise Refused("denied", "the MAC does not fit the grant")
        return grant, fields

    async def _void(self, grant: Grant, fields: dict[str, Any]) -> Answer:
        generations = fields.get("generations")
        if not isinstance(generations, list) or not all(type(g) is int and 0 < g < 1 << 64 for g in generations):
            raise Refused("bad", "generations must be a list of positive numbers")
        self._book.void(grant, generations)
        patience = self._clock() + VOID_PATIENCE_SECONDS
        # Rare, and a copy takes about a millisecond: not worth a way for the book to wake us.
        while (busy := {g for g in generations if grant.pushes.is_copying(g)}) and self._clock() < patience:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return _answer({"void": [g for g in generations if g not in busy]})


def _dump(fields: dict[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))


def _answer(fields: dict[str, Any]) -> Answer:
    return Answer(_dump(fields))


def _object(body: str) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused("bad", "the body is not JSON") from None
    if not isinstance(fields, dict):
        raise Refused("bad", "the body is not a JSON object")
    return fields


def _check_protocol(fields: dict[str, Any]) -> None:
    if fields.get("protocol") != PROTOCOL:
        raise Refused("bad", f"protocol {PROTOCOL} is spoken here")


def _text(fields: dict[str, Any], name: str, form: re.Pattern[str]) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise Refused("bad", f"{name} is missing or malformed")
    return value


def _natural(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise Refused("bad", f"{name} must be a number")
    return value


def _base64(fields: dict[str, Any], name: str) -> bytes:
    value = fields.get(name)
    try:
        raw = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        raw = b""
    if not 0 < len(raw) <= MAX_METADATA_BYTES:
        raise Refused("bad", f"{name} must be base64 of at most {MAX_METADATA_BYTES} bytes")
    return raw
