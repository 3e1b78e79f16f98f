"""Starts and stops the real programs of the end-to-end tests: vLLM, the gateway, and a web server with pictures."""

import contextlib
import dataclasses
import http.server
import json
import os
import pathlib
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import httpx

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import programs
from programs import GATEWAY, LOGS, PATIENCE_SECONDS, REPOSITORY, free_port, nixl_lib_dir

__all__ = ["GATEWAY", "LOGS", "MODEL", "REPOSITORY", "free_port", "nixl_lib_dir", "programs", "until"]

MODEL = "tiny-vlm"


# pytest's, if it runs us: what it captures, nobody sees before a test has failed.
uncaptured = contextlib.nullcontext


def say(text: str) -> None:
    """Tells whoever waits: a start of two minutes must not look like a hang."""
    with uncaptured():
        print(text, file=sys.stderr, flush=True)


class Process:
    """A program, its descendants and its log file."""

    def __init__(self, name: str, command: list[str], env: dict[str, str] | None = None):
        self.name = name
        self.log = LOGS / f"e2e-{name}.log"
        self.log.unlink(missing_ok=True)
        env = programs.environment("MEDIAGATE_", "VLLM_") | (env or {})
        self.popen = programs.start(command, self.log, env, dies_by=signal.SIGTERM, start_new_session=True)

    def alive(self) -> bool:
        return self.popen.poll() is None

    def wait_until_ready(self, url: str, seconds: float) -> None:
        begun = said = time.monotonic()
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(url, timeout=10).status_code == 200:
                    return
            now = time.monotonic()
            if not self.alive() or now - begun > seconds:
                what = "still not ready" if self.alive() else f"ended with {self.popen.returncode}"
                raise RuntimeError(f"{self.name} {what} after {now - begun:.0f} s:\n{self.tail()}")
            if now - said >= 15:
                said = now
                say(f"    starting {self.name}: {now - begun:.0f} s  | {self.tail(1)[:90]}")
            time.sleep(0.2)

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self, seconds: float = 30) -> None:
        """SIGTERM to the program; SIGKILL to what is left of it and its descendants."""
        family = [self.popen.pid, *descendants(self.popen.pid)]
        if self.alive():
            self.popen.terminate()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(map(running, family)):
            self.popen.poll()
            time.sleep(0.05)
        for pid in filter(running, family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.popen.wait()


def until(what: str, is_so: Callable[[], bool]) -> None:
    def is_so_now() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return is_so()
        return False

    programs.until(what, is_so_now, PATIENCE_SECONDS)


def descendants(pid: int) -> list[int]:
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def running(pid: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


class Metrics(dict):
    """One reading of a Prometheus page: each name with its labels left out, values summed."""

    LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{[^}]*\})? (\S+)", re.MULTILINE)

    @classmethod
    def read(cls, url: str) -> "Metrics":
        page = httpx.get(url, timeout=60).raise_for_status().text
        made = cls()
        for name, _labels, value in cls.LINE.findall(page):
            made[name] = made.get(name, 0.0) + float(value)
        return made


class Vllm(Process):
    """A real `vllm serve` with the tiny model, our plugin, and the one that notes what it opens and fetches."""

    def __init__(
        self,
        name: str = "vllm",
        plugins: str = "mediagate,mediagate_e2e_trace",
        flags: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.trace_file = LOGS / f"e2e-{name}.trace.jsonl"
        self.trace_file.parent.mkdir(parents=True, exist_ok=True)
        self.trace_file.write_text("")
        command = [str(REPOSITORY / "launch/vllm-worker.sh"), "--port", str(self.port), *flags]
        env = {
            "VLLM_PLUGINS": plugins,
            "MEDIAGATE_E2E_TRACE": str(self.trace_file),
            # Its development routes are there, so that a test can empty a cache, and prove that no client reaches them.
            "VLLM_SERVER_DEV_MODE": "1",
            # Of a gateway that gets no processor for a while, too.
            "MEDIAGATE_LEASE_SECONDS": "300",
            **(env or {}),
        }
        super().__init__(name, command, env)

    def ready(self) -> "Vllm":
        begun = time.monotonic()
        self.wait_until_ready(f"{self.url}/health", 1800)
        say(f"    vLLM is up after {time.monotonic() - begun:.0f} s")
        return self

    def metrics(self) -> Metrics:
        return Metrics.read(f"{self.url}/metrics")

    @contextlib.contextmanager
    def traced(self):
        """Yields a Counter that holds, after the block, what the worker opened and fetched during it."""
        begun = self.trace_file.stat().st_size
        counts: Counter[str] = Counter()
        yield counts
        with self.trace_file.open() as file:
            file.seek(begun)
            counts.update(json.loads(line)["what"] for line in file)


class Gateway(Process):
    def __init__(self, name: str, workers: list[str], *flags: str):
        self.workers = len(workers)
        listen, admin = free_port(), free_port()
        self.url = f"http://127.0.0.1:{listen}"
        self.admin_url = f"http://127.0.0.1:{admin}"
        command = [str(GATEWAY), "--listen", f"127.0.0.1:{listen}", "--admin-listen", f"127.0.0.1:{admin}"]
        for worker in workers:
            command += ["--worker", worker]
        super().__init__(name, [*command, *flags])

    def ready(self) -> "Gateway":
        self.wait_until_ready(f"{self.url}/ready", PATIENCE_SECONDS)
        return self

    def wait_until_attached(self) -> None:
        """Until every worker has granted landing memory: before that, pixels go inline."""

        def are_attached() -> bool:
            assert self.alive(), f"{self.name} has ended:\n{self.tail()}"
            return self.metrics().get("mediagate_worker_attached") == self.workers

        try:
            until(f"{self.workers} workers to be attached", are_attached)
        except AssertionError:
            say(self.tail())
            raise

    def metrics(self) -> Metrics:
        return Metrics.read(f"{self.admin_url}/metrics")


@dataclasses.dataclass
class Fetch:
    path: str
    user_agent: str


class FileServer:
    """Serves bytes by path on a loopback port and remembers who fetched what."""

    def __init__(self):
        self.files: dict[str, tuple[str, bytes]] = {}
        self.fetches: list[Fetch] = []
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                path = self.path.partition("?")[0]
                owner.fetches.append(Fetch(path, self.headers.get("user-agent", "")))
                kind, content = owner.files.get(path, ("text/plain", b"no such file"))
                self.send_response(200 if path in owner.files else 404)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def put(self, path: str, content: bytes, kind: str = "application/octet-stream") -> str:
        """Makes content available and returns its URL."""
        self.files[path] = (kind, content)
        return f"http://127.0.0.1:{self.port}{path}"

    def count(self, path: str) -> int:
        return sum(fetch.path == path for fetch in self.fetches)

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
