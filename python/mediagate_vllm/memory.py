"""The landing memory: one memfd, made by the lander, mapped by every API process.

A memfd leaves nothing behind in /dev/shm when its processes die, and is not bound by that directory's size. The lander
faults all of it in at once, so that a machine which lacks the memory says so at start and not in mid-request; the API
processes map it read-only, for they have no business writing there.
"""

import ctypes
import fcntl
import mmap
import os

import numpy as np

MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module has no name for it


class LandingMemory:
    """The lander's own, writable mapping."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.fd = os.memfd_create("mediagate-landing", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        # Nobody can shrink it under a reader, who would die of SIGBUS.
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self._map = mmap.mmap(self.fd, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        try:
            self._map.madvise(MADV_POPULATE_WRITE)
        except OSError:
            np.frombuffer(self._map, np.uint8)[:: mmap.PAGESIZE] = 0


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
