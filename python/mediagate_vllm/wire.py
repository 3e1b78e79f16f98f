"""How an API process and the lander talk: JSON messages over a unix stream socket, each after its length.

The lander speaks first: a hello that carries the landing memory's descriptor. Then the API process asks:

    {"op": "call", "id", "path", "body", "mac", "local"}  answered {"id", "ok": {"body", "mac"}}
    {"op": "claim", "id", "reference"}                    answered {"id", "ok": [offset, length]}
    {"op": "copied", "id"}                                the copy of that claim has ended; no answer
    {"op": "give_up", "id"}                               nobody wants that claim any more; no answer

or else `{"id", "refused": [kind, message]}`.

A process that goes away gives up all its claims. Both ends are the same user, and check it.
"""

import abc
import asyncio
import json
import os
import socket
import struct
from typing import Any, cast

MAX_BYTES = 1 << 20
_LENGTH = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    raw = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(raw)) + raw


class Frames(asyncio.Protocol, abc.ABC):
    """One end of the stream. A subclass says what a message means, and what the end does."""

    _transport: asyncio.Transport | None = None

    @abc.abstractmethod
    def received(self, message: Message) -> None:
        """A message came."""

    @abc.abstractmethod
    def lost(self) -> None:
        """The other end is gone."""

    def send(self, message: Message) -> None:
        if self.is_open and self._transport is not None:
            self._transport.write(encode(message))

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are of no such class
        self._rest = bytearray()

    def data_received(self, data: bytes) -> None:
        # Messages are handled right here and not by a task: a task would add a turn of the loop to each.
        self._rest += data
        while len(self._rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest)
            if length > MAX_BYTES:
                raise ConnectionError("a message of the lander's protocol is too long")
            end = _LENGTH.size + length
            if len(self._rest) < end:
                break
            message = json.loads(self._rest[_LENGTH.size : end])
            del self._rest[:end]
            self.received(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost()


def is_same_user(connected: socket.socket) -> bool:
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(raw)[1] == os.getuid()


def send_hello(connected: socket.socket, hello: Message, fd: int) -> None:
    socket.send_fds(connected, [encode(hello)], [fd])


def receive_hello(connected: socket.socket) -> tuple[Message, int]:
    """Blocking, with the socket's timeout. The descriptor is the caller's to close."""
    raw, fds, _, _ = socket.recv_fds(connected, _LENGTH.size, 1)
    if len(fds) != 1:
        raise ConnectionError("the lander's hello brought no memory")
    try:
        while len(raw) < _LENGTH.size:
            raw += _some(connected, _LENGTH.size - len(raw))
        (length,) = _LENGTH.unpack(raw)
        body = b""
        while len(body) < min(length, MAX_BYTES):
            body += _some(connected, length - len(body))
        return json.loads(body), fds[0]
    except BaseException:
        os.close(fds[0])
        raise


def _some(connected: socket.socket, most: int) -> bytes:
    if not (raw := connected.recv(most)):
        raise ConnectionError("the lander hung up")
    return raw
