"""What tests that start real programs have in common: where things are, and processes that end with the tests."""

import contextlib
import ctypes
import fcntl
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
LOGS = REPOSITORY / ".cache/logs"
GATEWAY = pathlib.Path(os.environ.get("MEDIAGATE_BINARY", REPOSITORY / "target/release/mediagate"))
PR_SET_PDEATHSIG = 1
PATIENCE_SECONDS = 120.0
"""No event that a test waits for takes nearly as long, however busy the machine is."""


_given: set[int] = set()


def free_port() -> int:
    """None that the kernel gives to outgoing connections, nor one that was given before: a program that is started, or
    started again, must find it free."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        if port in _given:
            continue
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            _given.add(port)
            return port


def until(what: str, is_so: Callable[[], bool], seconds: float, pause_seconds: float = 0.05) -> None:
    """Waits for a state. `seconds` is for what never comes; what comes may take as long as a busy machine needs."""
    deadline = time.monotonic() + seconds
    while not is_so():
        # Not what was so when this process had no processor: it is asked once more.
        if time.monotonic() > deadline and not is_so():
            raise AssertionError(f"waited in vain for: {what}")
        time.sleep(pause_seconds)


def unacknowledged(connection: socket.socket) -> int:
    """Bytes in the sending buffer that the other side's kernel has not taken yet (tcp(7), SIOCOUTQ)."""
    return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def states(pid: int) -> str:
    """Of its threads; one that has ended is left as a Z until all have."""
    found = ""
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            found += task.read_text().rpartition(")")[2].split()[0]
    return found


def kill(pid: int) -> None:
    """Until it has ended, but for its parent's word."""
    os.kill(pid, signal.SIGKILL)
    until("its end", lambda: states(pid) in ("", "Z"), PATIENCE_SECONDS)


def stop(pid: int) -> None:
    """Until all of its threads stand still: one in the midst of a system call ends that first."""
    os.kill(pid, signal.SIGSTOP)
    until("its threads to stop", lambda: set(states(pid)) <= {"T"}, PATIENCE_SECONDS)


def go_on(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Whatever happens meanwhile, it goes on afterwards: a test that fails must not leave it to others as it is."""
    try:
        stop(pid)
        yield
    finally:
        go_on(pid)


def nixl_lib_dir() -> pathlib.Path:
    """Where the Python package keeps libnixl_capi.so."""
    import nixl_cu12

    return pathlib.Path(nixl_cu12.__file__).parents[1] / ".nixl_cu12.mesonpy.libs"


def environment(*prefixes: str) -> dict[str, str]:
    """This process's, without the variables that begin so: settings of whoever runs the tests must not change what is
    tested."""
    return {key: value for key, value in os.environ.items() if not key.startswith(prefixes)}


def start(
    command: list[str], log: pathlib.Path, env: dict[str, str], *, dies_by: signal.Signals = signal.SIGKILL, **how
) -> subprocess.Popen:
    """A program whose output goes to the end of a file. The kernel sends it `dies_by` when the tests end, however they
    end."""

    def end_with_parent() -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, dies_by)

    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=REPOSITORY,
            preexec_fn=end_with_parent, **how,
        )  # fmt: skip
