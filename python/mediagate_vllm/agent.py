"""A NIXL agent with UCX over host memory, and only the calls that the lander needs.

nixl's Python API sets the progress thread's delay to 0, which spins a core for ever, so the bindings are used directly.
They serve host memory whatever CUDA they were built for, without torch and without a GPU.
"""

import importlib
from types import ModuleType
from typing import Any

WHEELS = ("nixl_cu12", "nixl_cu13", "nixl_rocm")
PROGRESS_DELAY_US = 100_000
"""The progress thread sleeps on UCX's descriptors; this is only how long it sleeps at most."""


class NixlMissingError(Exception):
    """There is no NIXL on this machine."""


def bindings() -> ModuleType:
    for name in WHEELS:
        try:
            return importlib.import_module(f"{name}._bindings")
        except ModuleNotFoundError as e:
            if e.name != name:
                raise
    raise NixlMissingError("no NIXL wheel is installed (pip install 'mediagate-vllm[nixl]')")


class Agent:
    """Not for several threads, although the bindings would allow it."""

    def __init__(self, name: str, *, progress_delay_us: int = PROGRESS_DELAY_US) -> None:
        self._b = b = bindings()
        config = b.nixlAgentConfig()
        config.useProgThread = True
        config.useListenThread = False
        config.pthrDelay = progress_delay_us
        config.syncMode = b.NIXL_THREAD_SYNC_RW
        self.name = name
        self._raw: Any = b.nixlAgent(name, config)
        self._raw.createBackend("UCX", {})

    def register(self, address: int, length: int) -> None:
        self._raw.registerMem(self._region(address, length), [])

    def deregister(self, address: int, length: int) -> None:
        """The memory itself must stay mapped: UCX may still write there for a peer that has not heard of it."""
        self._raw.deregisterMem(self._region(address, length), [])

    def metadata(self, address: int, length: int) -> bytes:
        """Connection info and that one registration: its reader can address nothing else here."""
        return self._raw.getLocalPartialMD(self._region(address, length), True, [])

    def add_peer(self, metadata: bytes) -> str:
        """The name of the agent whose metadata this is. Raises what NIXL raises for what is no metadata."""
        name = self._raw.loadRemoteMD(metadata)
        return name.decode("ascii") if isinstance(name, bytes) else name

    def forget_peer(self, name: str) -> None:
        self._raw.invalidateRemoteMD(name)

    def notifications(self) -> dict[str, list[bytes]]:
        """What has arrived since the last call. Must be called for ever: NIXL keeps them without bound."""
        return self._raw.getNotifs({}, [])

    def notify(self, peer: str, text: str) -> None:
        self._raw.genNotif(peer, text)

    def _region(self, address: int, length: int) -> Any:
        return self._b.nixlRegDList(self._b.DRAM_SEG, [(address, length, 0, "")])
