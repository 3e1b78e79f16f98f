"""The gateways that are compared, each with one worker that answers at once, started as their documentation says."""

import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
CACHE_BYTES = 2 << 30


class Gateway:
    """A gateway and its worker, as processes; `pid` is the gateway's, whose CPU is counted."""

    name = ""
    model = "tiny"

    def __init__(self, logs: pathlib.Path) -> None:
        self.logs = logs
        self.port = free_port()
        self.processes: list[subprocess.Popen] = []
        self.pid = 0

    def spawn(self, what: str, *command: object, **environment: str) -> int:
        log = (self.logs / f"peers-{self.name}-{what}.log").open("wb")
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self.processes.append(process)
        return process.pid

    def standin(self, *options: object) -> str:
        """Starts a stand-in worker; its URL."""
        port = free_port()
        listen = f"127.0.0.1:{port}"
        command = (sys.executable, "-m", "mediagate_vllm.standin", "--listen", listen, "--model", self.model)
        self.spawn("worker", *command, *options, PYTHONPATH=str(ROOT / "python"))
        wait_for_port(port)
        return f"http://{listen}"

    def ready(self, seconds: float = 120) -> None:
        """Waits until it serves the model."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if any(process.poll() is not None for process in self.processes):
                break
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models", timeout=2) as answer:
                    if self.model in [model["id"] for model in json.load(answer)["data"]]:
                        return
            except OSError:
                pass
            time.sleep(0.2)
        sys.exit(f"{self.name} did not start; its logs are {self.logs}/peers-{self.name}-*.log")

    def cpu_seconds(self) -> float:
        """User and system time of the gateway so far, of threads that have ended, too."""
        # The number that clock_getcpuclockid(3) gives; Python has no name for it. To the nanosecond.
        return time.clock_gettime(~self.pid << 3 | 2)

    def stop(self) -> None:
        for ask in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes:
                try:
                    os.killpg(process.pid, ask)
                except ProcessLookupError:
                    continue
            for process in self.processes:
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    continue


class Mediagate(Gateway):
    name = "mediagate"

    def start(self, worker: str, media_port: int, *options: object) -> None:
        self.pid = self.spawn(
            "gateway",
            *(ROOT / "target/release/mediagate", "--listen", f"127.0.0.1:{self.port}"),
            *("--admin-listen", f"127.0.0.1:{free_port()}", "--worker", worker),
            *("--media-allow-cidr", "127.0.0.0/8", "--media-allow-port", media_port, *options),
        )

    def decoding(self, model: pathlib.Path, nixl: pathlib.Path, media_port: int) -> "Mediagate":
        """Frontend decoding and routing by the prompt's tokens; files may come from `media_port` of this machine."""
        worker = self.standin("--landing-bytes", 512 << 20)
        decoding = ("--frontend-decoding", "--nixl-lib-dir", nixl, "--arena-bytes", CACHE_BYTES)
        self.start(worker, media_port, *decoding, "--model-path", model)
        return self

    def passing(self, media_port: int) -> "Mediagate":
        """The default: nothing is decoded, images keep their URLs, of which the first bytes are read."""
        self.start(self.standin("--no-nixl", "--allow-http"), media_port)
        return self


class Dynamo(Gateway):
    """NVIDIA Dynamo's frontend with its KV router, frontend decoding, and a picture cache, by default off."""

    name = "dynamo"

    def decoding(self, model: pathlib.Path, nixl: pathlib.Path, python: pathlib.Path) -> "Dynamo":
        # The documented way to run it without etcd and NATS.
        environment = {
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(self.logs / f"peers-dynamo-{self.port}"),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_MM_ALLOW_INTERNAL": "1",
            "DYN_MULTIMODAL_LOADER_CACHE_GB": str(CACHE_BYTES >> 30),
            "HF_HUB_OFFLINE": "1",
            "LD_LIBRARY_PATH": str(nixl),
            "NIXL_PLUGIN_DIR": str(nixl / "plugins"),
        }
        self.pid = self.spawn(
            "gateway",
            *(python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", self.port),
            *("--router-mode", "kv", "--no-router-kv-events", "--kv-cache-block-size", 16),
            **environment,
        )
        self.spawn("worker", python, HERE / "dynamo_worker.py", model, self.model, **environment)
        return self


class Smg(Gateway):
    """SMG in front of a plain vLLM server: a proxy that decodes nothing, with its default policy."""

    name = "smg"

    def passing(self, smg: pathlib.Path) -> "Smg":
        worker = self.standin("--no-nixl", "--allow-http")
        self.pid = self.spawn(
            "gateway",
            *(smg, "launch", "--host", "127.0.0.1", "--port", self.port, "--worker-urls", worker),
            *("--prometheus-port", free_port()),
        )
        return self


def free_port() -> int:
    """Below those that connections get: it stays free until it is listened on, which may be half a minute."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def wait_for_port(port: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"nothing listens on port {port}")
