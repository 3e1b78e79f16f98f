"""What tests that start real programs have in common: where things are, and processes that end with the tests."""

import contextlib
import ctypes
import os
import pathlib
import random
import signal
import socket
import subprocess

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
LOGS = REPOSITORY / ".cache/logs"
GATEWAY = pathlib.Path(os.environ.get("MEDIAGATE_BINARY", REPOSITORY / "target/release/mediagate"))
PR_SET_PDEATHSIG = 1


def free_port() -> int:
    """None that the kernel gives to outgoing connections: a program that is started again must find it free."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


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
