"""One vLLM, one gateway over real NIXL and one web server serve all end-to-end tests of a run."""

import signal

import pytest

import harness
from harness import GATEWAY, FileServer, Gateway, Vllm, nixl_lib_dir


def pytest_configure(config):
    if capture := config.pluginmanager.getplugin("capturemanager"):
        harness.uncaptured = capture.global_and_fixture_disabled
    # Whoever ends the test run with SIGTERM gets the teardown, and no vLLM is left behind.
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("ended by SIGTERM", returncode=143))


@pytest.fixture(scope="session")
def vllm_process():
    worker = Vllm(
        flags=("--mm-processor-kwargs", '{"size": {"shortest_edge": 65536, "longest_edge": 1048576}}'),
        env={"VLLM_ENABLE_RESPONSES_API_STORE": "1"},
    )
    yield worker
    worker.stop()


@pytest.fixture(scope="session")
def vllm(vllm_process):
    """A real vLLM with the plugin. Its own port takes what a client would send without a gateway."""
    return vllm_process.ready()


@pytest.fixture(scope="session")
def files():
    server = FileServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def start_gateway(files):
    """A function that starts a gateway that may fetch from the test's web server; all end with the test run."""
    started = []

    def start(name: str, workers: list[str], *flags: str, frontend_decoding: bool = True) -> Gateway:
        assert GATEWAY.exists(), f"{GATEWAY} is not built: cargo build --release"
        # Several of them and a vLLM share a small machine's memory.
        common = ["--arena-bytes", "256MiB", "--landing-bytes", "64MiB"]
        common += ["--media-allow-cidr", "127.0.0.0/8", "--media-allow-port", str(files.port)]
        if frontend_decoding:
            # Neither what is faster here, nor who gets no processor for a while, makes something else of a push.
            common += ["--frontend-decoding", "--inline-where-faster=false"]
            common += ["--push-timeout-ms", "60000", "--landing-timeout-ms", "60000"]
        gateway = Gateway(name, workers, *common, *flags)
        started.append(gateway)
        return gateway

    yield start
    for gateway in started:
        gateway.stop()


@pytest.fixture(scope="session")
def gateway(vllm, start_gateway):
    """The gateway as users run it: frontend decoding, pixels pushed over NIXL."""
    started = start_gateway("gateway", [vllm.url], "--nixl-lib-dir", str(nixl_lib_dir())).ready()
    started.wait_until_attached()
    return started
