"""The landing memory: one memfd, made by the lander, mapped by every API process.

A memfd leaves nothing behind in /dev/shm when its processes die, and is not bound by that directory's size. The lander
faults all of it in at once, so that a machine which lacks the memory says so at start and not in mid-request; the API
processes map it read-only, for they have no business writing there.
"""

import ctypes
import errno
import fcntl
import mmap
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from .settings import SettingError

MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module has no name for it
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


class LandingMemory:
    """The lander's own, writable mapping."""

    def __init__(self, size: int) -> None:
        """SettingError where there is not so much memory."""
        self.size = size
        # Asked first: taking what is not there ends with the out-of-memory killer, who may choose vLLM.
        if (available := available_bytes()) is not None and size > available:
            raise SettingError(f"{_asked_for(size)}, and {available >> 20} MiB are available")
        try:
            self._take(size)
        except OSError as e:
            raise SettingError(f"{_asked_for(size)}: {e.strerror}") from e

    def _take(self, size: int) -> None:
        self.fd = os.memfd_create("mediagate-landing", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        # Nobody can shrink it under a reader, who would die of SIGBUS.
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self._map = mmap.mmap(self.fd, size)
        # The kernel looks up each page that another process writes to: with 512 times fewer a push is much faster.
        # It gives huge ones where transparent_hugepage/shmem_enabled is "advise", "within_size" or "always".
        with suppress(OSError):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        try:
            self._map.madvise(MADV_POPULATE_WRITE)
        except OSError as e:
            if e.errno != errno.EINVAL:
                raise
            # An older kernel.
            np.frombuffer(self._map, np.uint8)[:: mmap.PAGESIZE] = 0

    def reads(self, offset: int, text: bytes) -> bool:
        """Whether these bytes are at this offset."""
        return self._map[offset : offset + len(text)] == text


def available_bytes() -> int | None:
    """Memory that this process could still have, of the machine and of its container; None where nobody tells."""
    known: list[int] = []
    with suppress(OSError, ValueError, StopIteration):
        line = next(line for line in MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:"))
        known.append(int(line.split()[1]) << 10)
    # The container's own group, as it sees it; "max" is no limit. Files that were read can make way, and count as used.
    with suppress(OSError, ValueError):
        known.append(int((CGROUP / "memory.max").read_text()))
    return min(known, default=None)


def _asked_for(size: int) -> str:
    return f"MEDIAGATE_LANDING_BYTES asks for {size >> 20} MiB of landing memory"


class LandingView:
    """An API process's read-only mapping. Arrays of it keep it alive after the lander that made it has died."""

    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        self._map = mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ)
        os.close(fd)

    def read(self, offset: int, length: int) -> np.ndarray:
        """The bytes themselves, not a copy: someone else may be writing them."""
        return np.frombuffer(self._map, np.uint8, count=length, offset=offset)
