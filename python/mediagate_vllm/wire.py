"""How an API process and the lander talk: JSON messages over a unix stream socket, each after its length.

The lander speaks first: a hello that carries the landing memory's descriptor. Then the API process asks:

    {"op": "call", "id", "path", "body", "mac", "local"}  answered {"id", "ok": {"body", "mac"}}
    {"op": "claim", "id", "reference"}                    answered {"id", "ok": [offset, length]}
    {"op": "copied", "id"}                                the copy of that claim has ended; no answer
    {"op": "give_up", "id"}                               nobody wants that claim any more; no answer

or else `{"id", "refused": [kind, message]}`.

A process that goes away gives up all its claims. Both ends are the same user, and check it.
"""

import asyncio
import json
import os
import socket
import struct
from typing import Any

MAX_BYTES = 1 << 20
_LENGTH = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    raw = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(raw)) + raw


async def read(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None at the end of the stream, or of what can be understood of it."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > MAX_BYTES:
            return None
        message = json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        return None
    return message if isinstance(message, dict) else None


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
