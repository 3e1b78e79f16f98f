"""The API process's half: a slot is said to be free when nobody reads it any more, whatever becomes of the request."""

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from mediagate_vllm.content import content_hash
from mediagate_vllm.errors import Refused
from mediagate_vllm.landing import COPY_THREADS, INLINE_COPY_BYTES, Landing
from mediagate_vllm.references import Reference


class Memory:
    """Landing memory whose readers stand still until they may go on."""

    def __init__(self, pixels: np.ndarray) -> None:
        self._pixels = pixels
        self.reading, self.go_on = threading.Event(), threading.Event()

    def read(self, offset: int, length: int) -> np.ndarray:
        self.reading.set()
        assert self.go_on.wait(30)
        return self._pixels[offset : offset + length]


class Connection:
    """A lander that hands over at once, or refuses; and what it was told."""

    def __init__(self, memory: Memory, refusals: dict[str, Refused]) -> None:
        self.view, self._refusals = memory, refusals
        self.told: list[tuple[str, int]] = []
        self.copied = threading.Event()
        self._last_id = 0

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    async def ask(self, op: str, ident: int, patience_seconds: float, *, reference: str):
        await asyncio.sleep(0)
        if refusal := self._refusals.get(reference):
            raise refusal
        return 0, HEIGHT * WIDTH * 3

    def say(self, op: str, ident: int) -> None:
        self.told.append((op, ident))
        if op == "copied":
            self.copied.set()


HEIGHT, WIDTH = 480, 640
PIXELS = np.random.default_rng(1).integers(0, 256, HEIGHT * WIDTH * 3, dtype=np.uint8)
REFERENCE = Reference(
    worker="0123456789abcdef", grant=1, generation=1, offset=0, height=HEIGHT, width=WIDTH,
    content_hash=content_hash(PIXELS, HEIGHT, WIDTH), media_id="0" * 64, uses=1, wait_ms=1000, mac="",
)  # fmt: skip


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    assert PIXELS.nbytes > INLINE_COPY_BYTES, "it is copied in a thread"
    monkeypatch.setattr("mediagate_vllm.landing.parse", lambda _: REFERENCE)
    memory = Memory(PIXELS)
    yield memory
    memory.go_on.set()


def landing_at(connection: Connection) -> Landing:
    landing = Landing("\0nobody")
    landing._connection = connection
    return landing


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 30)


def test_one_image_that_fails_while_the_other_is_copied_frees_no_slot_under_the_reader(memory: Memory):
    async def request() -> None:
        connection = Connection(memory, {"second": Refused("stale", "other pixels landed")})
        landing = landing_at(connection)
        first = asyncio.create_task(landing.take("first"))
        await until(memory.reading)
        with pytest.raises(Refused, match="other pixels"):
            await landing.take("second")
        # The request is over, and what is left of it cancelled; the reader does not hear of that.
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert connection.told == [("give_up", 2)], "the first one's slot is still read"
        memory.go_on.set()
        await until(connection.copied)
        assert connection.told == [("give_up", 2), ("copied", 1)]
        await landing.stop()

    asyncio.run(asyncio.wait_for(request(), 60))


def test_a_copy_that_is_called_off_before_it_began_frees_its_slot_at_once(memory: Memory):
    async def request() -> None:
        connection = Connection(memory, {})
        landing = landing_at(connection)
        busy = [asyncio.create_task(landing.take("busy")) for _ in range(COPY_THREADS)]
        await until(memory.reading)
        waiting = asyncio.create_task(landing.take("waiting"))
        for _ in range(5):
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)
        assert connection.told == [("copied", COPY_THREADS + 1)]
        memory.go_on.set()
        copies = await asyncio.gather(*busy)
        assert all(copy.data.tobytes() == PIXELS.tobytes() for copy in copies)
        assert sorted(connection.told) == [("copied", n + 1) for n in range(COPY_THREADS + 1)]
        await landing.stop()

    asyncio.run(asyncio.wait_for(request(), 60))
