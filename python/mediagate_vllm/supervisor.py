"""Keeps one lander running, as a child of the API process of rank 0.

A lander that dies is started anew, under a new incarnation: gateways see `gone`, and attach again. Should it die again
and again, the pauses between the attempts grow. Where NIXL or the key file is missing, the log has one line, and it is
not tried again.
"""

import asyncio
import json
import logging
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from .lander import EXIT_IN_VAIN
from .settings import Settings

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 30.0
STEADY_AFTER_SECONDS = 60.0

# The child must not find modules in whatever directory vLLM was started from.
COMMAND = [sys.executable, *(["-P"] if sys.version_info >= (3, 11) else []), "-m", "mediagate_vllm.lander"]

log = logging.getLogger("vllm.mediagate")


class Supervisor:
    def __init__(self, settings: Settings, socket: str, about: dict[str, Any]) -> None:
        """`about`: what the attach answer says of this worker beside the lander's own (models, engine, ...)."""
        self._settings = json.dumps({**asdict(settings), "socket": socket, "about": about}).encode() + b"\n"
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.returncode is None else None

    def start(self) -> None:
        """In the process's main thread, and for its life: the kernel ends the lander when its parent *thread* ends."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            started = time.monotonic()
            try:
                status = await self._live_once()
                end = _told(status)
            except OSError as e:
                status, end = None, f"could not be started: {e}"
            if status == EXIT_IN_VAIN:
                return
            if time.monotonic() - started >= STEADY_AFTER_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            log.warning("mediagate: the lander %s; images come inline until another is up, in %.1f s", end, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _live_once(self) -> int:
        process = self._process = await asyncio.create_subprocess_exec(*COMMAND, stdin=PIPE, stdout=DEVNULL)
        assert process.stdin is not None
        with suppress(ConnectionError):
            process.stdin.write(self._settings)
            await process.stdin.drain()
        # stdin stays open: its end tells the lander that we are gone.
        return await process.wait()


def _told(status: int) -> str:
    """How a process ended, as a log line says it."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was ended by {name}" + (" (was it the out-of-memory killer?)" if -status == signal.SIGKILL else "")
