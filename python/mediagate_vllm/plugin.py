"""This API process's landing: what the endpoint plugin sets up and the connector uses.

vLLM makes a connector for each request parser and gives it nothing of ours, so the two meet here.
"""

import asyncio
import logging
from typing import Any

from .landing import Landing
from .settings import Settings
from .supervisor import Supervisor

log = logging.getLogger("vllm.mediagate")

_landing: Landing | None = None
_supervisor: Supervisor | None = None


def landing() -> Landing | None:
    return _landing


def start(rank: int, socket: str, about: dict[str, Any]) -> None:
    """Once an API process, in its event loop's thread. That of rank 0 keeps the lander; all connect to it."""
    global _landing, _supervisor
    asyncio.get_running_loop()
    if rank <= 0:
        _supervisor = Supervisor(Settings.from_environment(), socket, about)
        _supervisor.start()
    _landing = Landing(socket)
    _landing.start()
