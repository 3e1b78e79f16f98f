"""Two network namespaces with a cable between them stand in for two hosts: real NIXL over TCP, and a cut cable.

It takes the right to make namespaces (root, or CAP_SYS_ADMIN and CAP_NET_ADMIN); without it these tests are skipped.
"""

import contextlib
import ctypes
import functools
import itertools
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from chaos import Picture, body
from house import PATIENCE_SECONDS, Gateway, Worker, programs, sights

NAME = f"mg{secrets.token_hex(2)}"
GATEWAY, WORKER = "10.211.77.1", "10.211.77.2"
CLONE_NEWNET = 0x40000000
SECRET = "a secret of sixteen bytes at least"


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[str, str]]:
    """The namespaces of the gateway's and of the worker's host."""
    ours, theirs = f"{NAME}a", f"{NAME}b"
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` here, which makes network namespaces")
    try:
        ip(f"netns add {ours}")
        ip(f"netns add {theirs}")
        ip(f"link add {NAME}0 netns {ours} type veth peer name {NAME}1 netns {theirs}")
    except subprocess.CalledProcessError as refusal:
        _take_down(ours, theirs)
        pytest.skip(f"no right to make network namespaces here: {refusal.stderr.strip()}")
    for namespace, link, address in [(ours, 0, GATEWAY), (theirs, 1, WORKER)]:
        ip(f"-n {namespace} address add {address}/24 dev {NAME}{link}")
        ip(f"-n {namespace} link set {NAME}{link} up")
        ip(f"-n {namespace} link set lo up")
    yield ours, theirs
    _take_down(ours, theirs)


def _take_down(*namespaces: str) -> None:
    for namespace in namespaces:
        with contextlib.suppress(subprocess.CalledProcessError):
            ip(f"netns delete {namespace}")


@pytest.fixture(scope="module")
def pair(hosts: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Worker]]:
    ours, theirs = hosts
    key = tmp_path_factory.mktemp("key") / "attach-key"
    key.write_text(SECRET)
    # Processes of one machine that see each other would write to each other's memory directly.
    env = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": f"{NAME}0,{NAME}1"}
    worker = Worker(
        "two-hosts-worker", "--attach-key-file", str(key), "--cache-bytes", "0", "--lease-seconds", "2",
        "--landing-bytes", str(32 << 20), host=WORKER, prefix=["ip", "netns", "exec", theirs], env=env,
    )  # fmt: skip
    gateway = Gateway(
        "two-hosts-gateway", [worker.url], "--attach-key-file", str(key), "--inline-where-faster=false",
        "--arena-bytes", "128MiB", "--media-max-pixels", "4000000", "--health-interval-ms", "200",
        "--push-timeout-ms", "2000",
        host=GATEWAY, prefix=["ip", "netns", "exec", ours], env=env,
    )  # fmt: skip

    def attached() -> None:
        gateway.wait("/ready")
        until("attached", lambda: gateway.total("mediagate_worker_attached") == 1)

    at_the_gateways(ours, attached)
    yield gateway, worker
    gateway.end()
    worker.end()


def at_the_gateways(host: str, work: Callable[[], None]) -> None:
    """Runs in a thread that is on the gateway's host: nothing of the test's cables is seen by other processes."""

    def enter() -> None:
        with open(f"/var/run/netns/{host}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")

    with ThreadPoolExecutor(1, initializer=enter) as thread:
        thread.submit(work).result()


def until(what: str, is_so: Callable[[], bool]) -> None:
    programs.until(what, is_so, PATIENCE_SECONDS)


def ask(gateway: Gateway, picture: Picture) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return httpx.post(f"{gateway.url}/v1/chat/completions", content=body([picture]), headers=headers, timeout=300)


def sent_over_cable(host: str) -> int:
    """Bytes that the gateway's host has sent to the worker's."""
    read = ["ip", "netns", "exec", host, "cat", f"/sys/class/net/{NAME}0/statistics/tx_bytes"]
    return int(subprocess.run(read, check=True, capture_output=True, text=True).stdout)


def test_pixels_are_pushed_from_host_to_host(hosts, pair):
    at_the_gateways(hosts[0], lambda: push_some(hosts, pair[0]))


def push_some(hosts: tuple[str, str], gateway: Gateway) -> None:
    assert gateway.total("mediagate_worker_lane", 'lane="tcp"') == 1
    noise = np.random.default_rng(1)

    def is_pushed(height: int, width: int) -> bool:
        picture = Picture(noise, height, width)
        before = sent_over_cable(hosts[0])
        answer = ask(gateway, picture)
        assert answer.status_code == 200, answer.text
        seen = sights(answer)[0]
        assert seen["rgb_sha256"] == picture.sha256
        assert sent_over_cable(hosts[0]) - before >= height * width * 3
        return seen["transfer"] == "push"

    # At once, unless a lease has ended meanwhile, which is short here.
    for size in [(30, 40), (480, 640), (1500, 1700)]:
        until(f"a push of {size}", functools.partial(is_pushed, *size))


def test_a_cable_that_is_cut_for_a_while_costs_what_was_on_it_and_no_more(hosts, pair):
    at_the_gateways(hosts[0], lambda: cut_the_cable(hosts, pair[0]))


def cut_the_cable(hosts: tuple[str, str], gateway: Gateway) -> None:
    noise = np.random.default_rng(2)
    ip(f"-n {hosts[0]} link set {NAME}0 down")
    try:
        answer = ask(gateway, Picture(noise, 300, 400))
        assert answer.status_code in (502, 503), answer.text
    finally:
        ip(f"-n {hosts[0]} link set {NAME}0 up")
    for seed in itertools.count(3):
        picture = Picture(np.random.default_rng(seed), 300, 400)
        answer = ask(gateway, picture)
        assert answer.status_code in (200, 502, 503), answer.text
        if answer.status_code == 200:
            seen = sights(answer)[0]
            assert seen["rgb_sha256"] == picture.sha256
            if seen["transfer"] == "push":
                break
        assert seed < 600, "it is never pushed again"
        time.sleep(0.1)
    until("all slots to come back", lambda: gateway.total("mediagate_landing_open") == 0)
