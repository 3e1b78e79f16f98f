"""Real processes for tests of what happens when they die or stand still: gateways, and stand-ins with landers."""

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import httpx

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
LOGS = REPOSITORY / ".cache/logs"
BINARY = pathlib.Path(os.environ.get("MEDIAGATE_BINARY", REPOSITORY / "target/release/mediagate"))
PR_SET_PDEATHSIG = 1


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def nixl_lib_dir() -> pathlib.Path:
    import nixl_cu12

    return pathlib.Path(nixl_cu12.__file__).parents[1] / ".nixl_cu12.mesonpy.libs"


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Program:
    """A program on a fixed address, which can be killed, stopped and started again. Its log goes on over its lives."""

    def __init__(
        self, name: str, command: list[str], url: str, *, prefix: Sequence[str] = (), env: dict[str, str] | None = None
    ) -> None:
        self.name, self.url = name, url
        self._command = [*prefix, *command]
        # Settings of whoever runs the tests must not change what is tested.
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MEDIAGATE_")}
        self._env = kept | {"PYTHONPATH": str(REPOSITORY / "python")} | (env or {})
        LOGS.mkdir(parents=True, exist_ok=True)
        self.log = LOGS / f"processes-{name}.log"
        self.log.write_text("")
        self.stopped: set[int] = set()
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=REPOSITORY, preexec_fn=_end_with_parent,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """As a crash would end it."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def wait(self, path: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(self.url + path, timeout=5).status_code == 200:
                    return
            if not self.alive() or time.monotonic() > deadline:
                raise AssertionError(f"{self.name} is not up:\n{self.tail()}")
            time.sleep(0.05)

    def tail(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Worker(Program):
    def __init__(self, name: str, *flags: str, host: str = "127.0.0.1", **how) -> None:
        port = free_port()
        command = [sys.executable, "-m", "mediagate_vllm.standin", "--listen", f"{host}:{port}", *flags]
        super().__init__(name, command, f"http://{host}:{port}", **how)

    def lander(self) -> int | None:
        """The process that owns the landing memory, if there is one now."""
        with contextlib.suppress(OSError):
            for child in pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
                if pathlib.Path(f"/proc/{child}/comm").read_text().startswith("mediagate-land"):
                    return int(child)
        return None


class Gateway(Program):
    def __init__(self, name: str, workers: Sequence[str], *flags: str, host: str = "127.0.0.1", **how) -> None:
        port, admin = free_port(), free_port()
        self.admin = f"http://{host}:{admin}"
        command = [
            str(BINARY), "--listen", f"{host}:{port}", "--admin-listen", f"{host}:{admin}", "--frontend-decoding",
            "--nixl-lib-dir", str(nixl_lib_dir()), *(word for url in workers for word in ("--worker", url)), *flags,
        ]  # fmt: skip
        super().__init__(name, command, f"http://{host}:{port}", **how)

    def metrics(self) -> dict[str, float]:
        """By series, as /metrics writes it."""
        lines = httpx.get(f"{self.admin}/metrics", timeout=10).text.splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {series: float(value) for series, _, value in pairs}

    def total(self, name: str, label: str = "") -> float:
        """The sum of all series of a metric that have this text in their labels."""
        series = self.metrics().items()
        return sum(value for key, value in series if key.partition("{")[0] == name and label in key)


def sights(answer: httpx.Response) -> list[dict]:
    """What the stand-in saw."""
    return json.loads(answer.json()["choices"][0]["message"]["content"])["images"]
