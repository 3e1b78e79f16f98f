"""The lander: the process on a worker that owns the NIXL agent, the landing memory and the book.

`python -m mediagate_vllm.lander`, started by `supervisor` with its settings as one line of JSON on stdin. It is a
process of its own so that a crash inside NIXL costs a moment of inline images and not the vLLM server, and so that its
polling never shares a GIL with vLLM's event loop. It imports NIXL's bindings, numpy, blake3; never torch, never vLLM.

One thread, one event loop. While a claim waits, the place where its mark will stand is looked at again and again.
NIXL's notifications are drained now and then: gateways send none, but NIXL keeps unread ones without bound.

It dies with its parent: stdin ends, or the kernel sends the death signal. SIGINT and SIGTERM are ignored, so that a
signal to the whole process group leaves the lander up while vLLM finishes its requests.
"""

import asyncio
import ctypes
import json
import logging
import os
import secrets
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

from . import macs, wire
from .agent import Agent, NixlMissingError
from .book import Book, Grant
from .client import Client
from .door import Door
from .memory import LandingMemory
from .settings import SettingError

EAGER_POLL_SECONDS = 0.0002
EAGER_FOR_SECONDS = 0.02
WAITING_POLL_SECONDS = 0.001
IDLE_POLL_SECONDS = DRAIN_SECONDS = 0.1
POLL_SECONDS_PER_CLAIM = 5e-6  # however many wait, looking takes a part of the time
TICK_SECONDS = 0.005
EXIT_IN_VAIN = 78  # EX_CONFIG: no NIXL here, or no such key file; starting again will not help
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_TIMERSLACK = 1, 15, 29

log = logging.getLogger("mediagate.lander")
clock = time.monotonic


class Landing:
    """The agent and the memory together: the door's transport."""

    def __init__(self, worker: str, size: int) -> None:
        self.memory = LandingMemory(size)
        self.agent = Agent(f"mediagate-worker-{worker}")
        self.name = self.agent.name

    def add_peer(self, metadata: bytes) -> str:
        return self.agent.add_peer(metadata)

    def forget_peer(self, name: str) -> None:
        with suppress(Exception):  # unknown to NIXL is as good as forgotten
            self.agent.forget_peer(name)

    def open(self, grant: Grant) -> tuple[int, bytes]:
        address, length = self._place(grant)
        self.agent.register(address, length)
        return address, self.agent.metadata(address, length)

    def close(self, grant: Grant) -> None:
        """After the grace time. The next grant of this range is registered anew: on RDMA, under another key."""
        with suppress(Exception):
            self.agent.deregister(*self._place(grant))

    def tell(self, agent: str, text: str) -> None:
        try:
            self.agent.notify(agent, text)
        except Exception as e:  # a gateway that died: its lease will tell
            log.debug("cannot tell %s: %r", agent, e)

    def _place(self, grant: Grant) -> tuple[int, int]:
        return self.memory.address + grant.range.offset, grant.range.length


def _secret(file: str | None) -> bytes:
    try:
        return macs.read_secret(file) if file else b""
    except (OSError, ValueError) as e:
        raise SettingError(e) from e


class Lander:
    def __init__(self, settings: dict[str, Any]) -> None:
        worker = secrets.token_hex(8)
        self.landing = Landing(worker, settings["landing_bytes"])
        self.book = Book(
            worker,
            settings["landing_bytes"],
            grant_bytes=settings["grant_bytes"],
            lease_seconds=settings["lease_seconds"],
            grace_seconds=settings["grace_seconds"],
            tell=self.landing.tell,
            reads=self.landing.memory.reads,
            freed=self._freed,
        )
        secret = _secret(settings["attach_key_file"])
        self.door = Door(
            self.book,
            self.landing,
            secret_key=macs.secret_key(secret),
            has_secret=bool(secret),
            about=settings["about"],
            clock=clock,
        )
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._last_wait = self._last_tick = self._last_drain = clock()

    def _freed(self, grant: Grant) -> None:
        self.landing.close(grant)
        # Not earlier: its gateway may have attached again, or be finishing a WRITE.
        if not self.book.knows(grant.agent):
            self.landing.forget_peer(grant.agent)

    def poll(self) -> None:
        """Look for marks and at the clock, now and again and again."""
        if self._timer is not None:
            self._timer.cancel()
        self.book.look()
        now = clock()
        if now - self._last_drain >= DRAIN_SECONDS:
            self._last_drain = now
            self._drain()
        if now - self._last_tick >= TICK_SECONDS:
            self._last_tick = now
            self.book.tick(now)
        if not self.book.waiting:
            wait = IDLE_POLL_SECONDS
        elif now - self._last_wait < EAGER_FOR_SECONDS:
            wait = EAGER_POLL_SECONDS
        else:
            wait = WAITING_POLL_SECONDS
        self._timer = self._loop.call_later(max(wait, len(self.book.waiting) * POLL_SECONDS_PER_CLAIM), self.poll)

    def _drain(self) -> None:
        try:
            self.landing.agent.notifications()
        except Exception:
            log.exception("NIXL gives no notifications")

    def hurry(self) -> None:
        """A claim waits: look for its pixels more often."""
        self._last_wait = clock()
        self.poll()

    async def listen(self, name: str) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(name)
        listener.listen(16)
        listener.setblocking(False)
        while True:
            try:
                connected, _ = await self._loop.sock_accept(listener)
            except OSError as e:  # no descriptors left, most likely
                log.warning("mediagate: cannot accept an API process: %s", e)
                await asyncio.sleep(1)
                continue
            try:
                await self._welcome(connected)
            except (OSError, ValueError) as e:  # it has left already
                log.warning("mediagate: an API process was not connected: %s", e)
                connected.close()

    async def _welcome(self, connected: socket.socket) -> None:
        if not wire.is_same_user(connected):
            raise PermissionError("of another user")
        memory = self.landing.memory
        wire.send_hello(connected, {"worker": self.book.worker, "bytes": memory.size}, memory.fd)
        await self._loop.connect_accepted_socket(lambda: Client(self), connected)


def _die_with_parent() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(PR_SET_NAME, b"mediagate-landr")
    # By default a sleep of 200 microseconds takes 250 and more.
    libc.prctl(PR_SET_TIMERSLACK, 1000)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


async def _run() -> None:
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin.buffer)
    settings = json.loads(await stdin.readline())
    started = clock()
    lander = Lander(settings)
    lander.poll()
    listening = loop.create_task(lander.listen(settings["socket"]))
    log.info(
        "mediagate: %d MiB of landing memory up in %.1f s, incarnation %s, %s",
        settings["landing_bytes"] >> 20,
        clock() - started,
        lander.book.worker,
        "with an attach key" if settings["attach_key_file"] else "no attach key: gateways on this machine only",
    )
    end = loop.create_task(stdin.read())
    await asyncio.wait({listening, end}, return_when=asyncio.FIRST_COMPLETED)
    if listening.done():
        listening.result()


def close_inherited() -> None:
    """Lets go of what the parent left open: above all of vLLM's listening socket, which uvloop passes on to children.
    A lander that kept it would accept connections into the void after the server's death."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > sys.stderr.fileno():
            with suppress(OSError):  # the folder that was listed is among them
                os.close(int(name))


def main() -> None:
    close_inherited()
    _die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    # select() waits for fractions of a millisecond, which epoll cannot; there are few descriptors here.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    status = 0
    try:
        loop.run_until_complete(_run())
    except (NixlMissingError, SettingError) as e:
        log.error("mediagate: %s; images will come inline", e)
        status = EXIT_IN_VAIN
    except Exception:
        log.exception("mediagate: the lander failed")
        status = 1
    sys.stderr.flush()
    # Peers may be writing right now: taking UCX apart gains nothing, and has been seen to crash.
    os._exit(status)


if __name__ == "__main__":
    main()
