"""`vllm serve --api-server-count 2`: one lander for both API processes, and a processor cache in each."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

import chat
from harness import Vllm, descendants, nixl_lib_dir, programs
from pictures import data_uri, drawing, encode, image, text

QUESTION = text("What is in the picture?")
DEBUG = {"x-mediagate-debug": "1"}
ROUNDS = 24
"""More than the trials after which a belief that is mostly wrong is given up."""


@pytest.fixture(scope="module")
def pair(start_gateway):
    """A vLLM with two API processes, and a gateway of its own."""
    worker = Vllm("vllm-two-servers", flags=("--api-server-count", "2"))
    try:
        worker.ready()
        gateway = start_gateway("gateway-two-servers", [worker.url], "--nixl-lib-dir", str(nixl_lib_dir())).ready()
        gateway.wait_until_attached()
        yield worker, gateway
        gateway.stop()
    finally:
        worker.stop()


def picture(seed: int) -> dict:
    return image(data_uri(encode(drawing(seed), "PNG"), "PNG"))


def transfers(gateway, outcome: str) -> float:
    page = httpx.get(f"{gateway.admin_url}/metrics", timeout=60).text
    lines = [line for line in page.splitlines() if line.startswith(f'mediagate_transfers_total{{outcome="{outcome}"}}')]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def forget(worker) -> None:
    """Empties the processor cache of each API process: the other stands still meanwhile, so that only it can accept."""

    def accepts(pid: int) -> bool:
        connections = psutil.Process(pid).net_connections("tcp")
        return any(each.status == psutil.CONN_LISTEN and each.laddr.port == worker.port for each in connections)

    processes = [pid for pid in descendants(worker.popen.pid) if accepts(pid)]
    assert len(processes) == 2, "the lander, a child of one of them, holds no socket of vLLM"
    for process in processes:
        (other,) = (pid for pid in processes if pid != process)
        with programs.stopped(other):
            httpx.post(f"{worker.url}/reset_mm_cache", timeout=300).raise_for_status()


def test_pictures_reach_whichever_process_took_the_request(pair):
    worker, gateway = pair
    pictures = [picture(seed) for seed in range(200, 206)]
    with worker.traced() as seen, ThreadPoolExecutor(8) as pool:
        # Each picture four times: pushed, and named by uuid to a process that may have it or not.
        answers = list(pool.map(lambda part: chat.tokens(gateway.url, [part, QUESTION]), pictures * 4))
    assert not seen, "the worker opened no image and fetched no URL"
    for number in range(len(pictures)):
        assert len({tuple(tokens) for tokens in answers[number :: len(pictures)]}) == 1
    assert len({tuple(tokens) for tokens in answers}) == len(pictures)
    assert answers[0] == chat.tokens(worker.url, [pictures[0], QUESTION])
    assert transfers(gateway, "push") >= len(pictures)
    assert transfers(gateway, "inline") == 0


def test_a_belief_that_is_mostly_wrong_is_given_up(pair):
    worker, gateway = pair
    part = picture(210)
    first = chat.tokens(gateway.url, [part, QUESTION])
    for _ in range(ROUNDS):
        forget(worker)
        assert chat.tokens(gateway.url, [part, QUESTION]) == first
    misses = transfers(gateway, "uuid_miss")
    assert misses >= 8
    # From now on pixels are sent, although nothing makes the caches forget.
    named, pushed = transfers(gateway, "uuid"), transfers(gateway, "push")
    for _ in range(4):
        assert chat.tokens(gateway.url, [part, QUESTION]) == first
    assert transfers(gateway, "uuid") == named
    assert transfers(gateway, "uuid_miss") == misses
    assert transfers(gateway, "push") == pushed + 4
