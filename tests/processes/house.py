"""Real processes for tests of what happens when they die or stand still: gateways, and stand-ins with landers."""

import contextlib
import json
import pathlib
import signal
import subprocess
import sys
from collections.abc import Sequence

import httpx

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import programs
from programs import GATEWAY, LOGS, PATIENCE_SECONDS, REPOSITORY, free_port, nixl_lib_dir


class Program:
    """A program on a fixed address, which can be killed, stopped and started again. Its log goes on over its lives."""

    def __init__(
        self, name: str, command: list[str], url: str, *, prefix: Sequence[str] = (), env: dict[str, str] | None = None
    ) -> None:
        self.name, self.url = name, url
        self._command = [*prefix, *command]
        self._env = programs.environment("MEDIAGATE_") | {"PYTHONPATH": str(REPOSITORY / "python")} | (env or {})
        self.log = LOGS / f"processes-{name}.log"
        self.log.unlink(missing_ok=True)
        self.start()

    def start(self) -> None:
        self.process = programs.start(self._command, self.log, self._env)

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
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()

    def wait(self, path: str) -> None:
        def is_up() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(self.url + path, timeout=10).status_code == 200
            assert self.alive(), f"{self.name} has ended:\n{self.tail()}"
            return False

        try:
            programs.until(f"{self.name} to be up", is_up, PATIENCE_SECONDS)
        except AssertionError:
            print(self.tail())
            raise

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
            str(GATEWAY), "--listen", f"{host}:{port}", "--admin-listen", f"{host}:{admin}", "--frontend-decoding",
            "--nixl-lib-dir", str(nixl_lib_dir()), *(word for url in workers for word in ("--worker", url)), *flags,
        ]  # fmt: skip
        super().__init__(name, command, f"http://{host}:{port}", **how)

    def metrics(self) -> dict[str, float]:
        """By series, as /metrics writes it."""
        lines = httpx.get(f"{self.admin}/metrics", timeout=30).text.splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {series: float(value) for series, _, value in pairs}

    def total(self, name: str, label: str = "") -> float:
        """The sum of all series of a metric that have this text in their labels."""
        series = self.metrics().items()
        return sum(value for key, value in series if key.partition("{")[0] == name and label in key)


def sights(answer: httpx.Response) -> list[dict]:
    """What the stand-in saw."""
    return json.loads(answer.json()["choices"][0]["message"]["content"])["images"]
