"""The lander as an API process sees it: ask it for a reference's pixels, copy them once, check the copy.

The event loop only waits. Copy and hash run in threads and let go of the GIL. What comes back is private memory: when
`take` answers, the slot is the gateway's again, and whatever is written there can no longer reach the model.

When the lander dies, everything that waits on it fails with `gone` at once, and we connect to its successor.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from . import wire
from .content import content_hash
from .door import Answer
from .errors import Refused
from .memory import LandingView
from .references import Reference, parse

COPY_THREADS = 4
INLINE_COPY_BYTES = 128 << 10
"""Below this a copy takes less time than a change of threads."""
CLAIM_PATIENCE_SECONDS = 2.0  # beyond what the lander itself waits
CALL_PATIENCE_SECONDS = 10.0
RECONNECT_SECONDS, RECONNECT_SECONDS_MOST = 0.05, 2.0
HELLO_TIMEOUT_SECONDS = 10.0

log = logging.getLogger("vllm.mediagate")


@dataclass(frozen=True, eq=False)
class Pixels:
    """RGB8 pixels of which the hash was checked: `data` is flat, height x width x 3, writable, and nobody else's."""

    data: np.ndarray
    height: int
    width: int
    content_hash: str
    media_id: str


class Connection(wire.Frames):
    """One connection to one incarnation of the lander."""

    def __init__(self, view: LandingView, worker: str) -> None:
        self.view = view
        self.worker = worker
        self.ended = asyncio.Event()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0

    async def ask(self, op: str, ident: int, patience_seconds: float, **fields: Any) -> Any:
        """The lander's answer. A lander that gives none, being stopped or stuck, is not waited for for ever."""
        if not self.is_open:
            raise Refused("gone", "the lander died")
        loop = asyncio.get_running_loop()
        future = self._answers[ident] = loop.create_future()
        self.send({"op": op, "id": ident, **fields})
        timer = loop.call_later(patience_seconds, _fail, future, Refused("late", "the lander does not answer"))
        try:
            return await future
        finally:
            timer.cancel()
            self._answers.pop(ident, None)

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def say(self, op: str, ident: int) -> None:
        self.send({"op": op, "id": ident})

    def received(self, message: wire.Message) -> None:
        future = self._answers.pop(message["id"], None)
        if future is None or future.done():
            return
        if "refused" in message:
            future.set_exception(Refused(*message["refused"]))
        else:
            future.set_result(message["ok"])

    def lost(self) -> None:
        for future in self._answers.values():
            _fail(future, Refused("gone", "the lander died"))
        self.ended.set()


def _fail(future: asyncio.Future[Any], refusal: Refused) -> None:
    if not future.done():
        future.set_exception(refusal)


class Landing:
    def __init__(self, name: str) -> None:
        """`name`: the lander's unix socket (abstract, so it begins with a zero byte)."""
        self._name = name
        self._connection: Connection | None = None
        self._connected = asyncio.Event()
        self._pool = ThreadPoolExecutor(COPY_THREADS, thread_name_prefix="mediagate-copy")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._stay_connected())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._pool.shutdown(wait=False)

    async def ready(self) -> str:
        """The lander's incarnation, once there is one."""
        while self._connection is None:
            await self._connected.wait()
        return self._connection.worker

    async def call(self, path: str, body: str, mac: str, *, is_local: bool) -> Answer:
        """Bring one of the door's calls to it."""
        if (connection := self._connection) is None:
            raise Refused("late", "no lander is up")
        fields = {"path": path, "body": body, "mac": mac, "local": is_local}
        return Answer(**await connection.ask("call", connection.next_id(), CALL_PATIENCE_SECONDS, **fields))

    async def take(self, url: str) -> Pixels:
        """The pixels that the reference `url` names, or Refused. May be cancelled at any time: no slot is lost."""
        ref = parse(url)
        if (connection := self._connection) is None:
            raise Refused("gone", "no lander is up")
        ident = connection.next_id()
        patience = ref.wait_ms / 1000 + CLAIM_PATIENCE_SECONDS
        try:
            offset, length = await connection.ask("claim", ident, patience, reference=url)
        except BaseException:  # cancelled above all; a claim that the lander refused it does not know any more
            connection.say("give_up", ident)
            raise
        ended = partial(connection.say, "copied", ident)
        if length <= INLINE_COPY_BYTES:
            try:
                return _copy(connection.view, offset, ref)
            finally:
                ended()
        return await self._in_thread(partial(_copy, connection.view, offset, ref), ended)

    async def _in_thread(self, copy: Callable[[], Pixels], ended: Callable[[], None]) -> Pixels:
        """`ended` is called when the copy has ended, which a cancelled request does not hasten."""
        loop = asyncio.get_running_loop()

        def done(_: Future[Pixels]) -> None:
            with suppress(RuntimeError):  # the loop is closed, and with it the connection
                loop.call_soon_threadsafe(ended)

        copying = self._pool.submit(copy)
        copying.add_done_callback(done)
        return await asyncio.wrap_future(copying)

    async def _stay_connected(self) -> None:
        pause = RECONNECT_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                connected, view, worker = await asyncio.to_thread(self._connect)
            except (OSError, ValueError, KeyError):
                pause = min(1.5 * pause, RECONNECT_SECONDS_MOST)
                continue
            pause = RECONNECT_SECONDS
            connection = Connection(view, worker)
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_unix_connection(lambda c=connection: c, sock=connected)
            self._connection = connection
            self._connected.set()
            try:
                await connection.ended.wait()
            finally:
                self._connection = None
                self._connected.clear()
                transport.close()

    def _connect(self) -> tuple[socket.socket, LandingView, str]:
        """Blocking: mapping half a gigabyte takes a moment."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(HELLO_TIMEOUT_SECONDS)
            connected.connect(self._name)
            if not wire.is_same_user(connected):
                raise PermissionError("another user listens under the lander's name")
            hello, fd = wire.receive_hello(connected)
            view = LandingView(fd, hello["bytes"])
            connected.setblocking(False)
            return connected, view, hello["worker"]
        except BaseException:
            connected.close()
            raise


def _copy(view: LandingView, offset: int, ref: Reference) -> Pixels:
    copy = np.empty(ref.length, np.uint8)
    np.copyto(copy, view.read(offset, ref.length))
    if content_hash(copy, ref.height, ref.width) != ref.content_hash:
        raise Refused("stale", "the pixels that landed are not those of the reference")
    return Pixels(copy, ref.height, ref.width, ref.content_hash, ref.media_id)
