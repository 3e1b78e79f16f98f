"""Where the lander runs, as far as a gateway on the same machine must know to tell why memory is not written directly.

UCX writes straight into the memory of another process of the same machine (CMA) where the kernel allows it, which takes
the same PID namespace, and the same user or CAP_SYS_PTRACE. Where it does not, UCX falls back to TCP and says nothing.
A gateway compares these facts with its own, and tells the operator what its container lacks.
"""

import os
from pathlib import Path
from typing import Any

from .macs import mac

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def whereabouts(grant_key: bytes) -> dict[str, Any] | None:
    """For the attach answer; None where /proc does not tell. A MAC names the machine, and so tells neighbours only."""
    try:
        boot_id = BOOT_ID.read_text().strip()
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None
    host = mac(grant_key, "mediagate host v1", boot_id)
    return {"host": host, "pid_namespace": namespace, "pid": os.getpid(), "uid": os.geteuid()}
