"""What the stand-in remembers under a uuid: an LRU like vLLM's processor cache, bounded in items and in bytes."""

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """What the stand-in saw of one image."""

    height: int
    width: int
    content_hash: str
    rgb_sha256: str

    @property
    def bytes(self) -> int:
        return self.height * self.width * 3


class UuidCache:
    def __init__(self, max_items: int, max_bytes: int) -> None:
        self.queries = 0
        self.hits = 0
        self._max_items, self._max_bytes = max_items, max_bytes
        self._items: OrderedDict[str, Facts] = OrderedDict()
        self._bytes = 0

    def get(self, uuid: str) -> Facts | None:
        self.queries += 1
        if (facts := self._items.get(uuid)) is not None:
            self.hits += 1
            self._items.move_to_end(uuid)
        return facts

    def put(self, uuid: str, facts: Facts) -> None:
        """As in vLLM, an item larger than the cache is not kept."""
        if uuid in self._items or facts.bytes > self._max_bytes or self._max_items == 0:
            return
        self._items[uuid] = facts
        self._bytes += facts.bytes
        while len(self._items) > self._max_items or self._bytes > self._max_bytes:
            self._bytes -= self._items.popitem(last=False)[1].bytes
