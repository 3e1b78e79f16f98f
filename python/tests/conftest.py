"""Stand-in workers for the tests: real processes, with a real lander and real NIXL."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from gateway import Gateway

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from programs import PATIENCE_SECONDS, free_port, until

SECRET = b"a shared secret of the tests"


class Worker:
    """A running stand-in."""

    def __init__(self, *flags: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "mediagate_vllm.standin", "--listen", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen([*command, "--landing-bytes", str(32 << 20), *flags])

    def wait(self, path: str = "/health") -> "Worker":
        """Until the server answers."""
        return self._until(lambda: httpx.get(self.url + path, timeout=30).status_code == 200)

    def wait_for_lander(self, other_than: str = "") -> str:
        """Until a lander is up; its incarnation."""
        fields = {"protocol": 2, "gateway": "0" * 16, "nonce": "0" * 64}
        answer: dict = {}

        def up() -> bool:
            got = httpx.post(self.url + "/mediagate/attach/hello", json=fields, timeout=30)
            answer.update(got.json())
            return got.status_code == 200 and answer["worker"] != other_than

        self._until(up)
        return answer["worker"]

    def lander_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        assert len(children) == 1
        return int(children[0])

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def _until(self, up: Callable[[], bool]) -> "Worker":
        def is_up() -> bool:
            try:
                return up()
            except httpx.TransportError:
                assert self.process.poll() is None, "the stand-in died"
                return False

        until("the stand-in to come up", is_up, PATIENCE_SECONDS)
        return self


@pytest.fixture(scope="session")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("key") / "attach-key"
    file.write_bytes(SECRET + b"\n")
    return file


@pytest.fixture(scope="session")
def worker(key_file: Path) -> Iterator[Worker]:
    """One stand-in with an attach key, for all tests that leave it as it was."""
    # No lease of theirs ends because a test gets no processor.
    running = Worker("--attach-key-file", str(key_file), "--grace-seconds", "0", "--lease-seconds", "300")
    running.wait_for_lander()
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def _gateways_leave() -> Iterator[None]:
    """Those that a test has made, and no others."""
    before = len(Gateway.made)
    yield
    for gateway in Gateway.made[before:]:
        gateway.close()
    del Gateway.made[before:]


@pytest.fixture
def gateway(worker: Worker) -> Gateway:
    return Gateway(worker.url, SECRET)


def _start() -> Iterator[Callable[..., Worker]]:
    running: list[Worker] = []

    def start(*flags: str) -> Worker:
        running.append(Worker(*flags))
        return running[-1]

    yield start
    for each in running:
        each.stop()


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    """Start stand-ins of one's own."""
    yield from _start()


@pytest.fixture(scope="module")
def start_module() -> Iterator[Callable[..., Worker]]:
    """The same, for all tests of a file."""
    yield from _start()
