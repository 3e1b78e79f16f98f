"""Which parts of the landing memory are granted: first fit over a handful of ranges."""

from dataclasses import dataclass

from .references import PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Range:
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


class Ranges:
    """Free ranges of `size` bytes, in order and never touching each other."""

    def __init__(self, size: int) -> None:
        self.free = [Range(0, size)]

    def take(self, most: int, least: int) -> Range | None:
        """A page-aligned range of `most` bytes, or else the longest there is, if that is `least` bytes or more."""
        most = max(PAGE_BYTES, most - most % PAGE_BYTES)
        fits = next((r for r in self.free if r.length >= most), None)
        chosen = fits or max(self.free, key=lambda r: r.length, default=None)
        if chosen is None or chosen.length < min(least, most):
            return None
        taken = Range(chosen.offset, min(most, chosen.length))
        self.free.remove(chosen)
        if rest := chosen.length - taken.length:
            self._insert(Range(taken.end, rest))
        return taken

    def give_back(self, given: Range) -> None:
        before = next((r for r in self.free if r.end == given.offset), None)
        after = next((r for r in self.free if r.offset == given.end), None)
        for neighbour in (before, after):
            if neighbour is not None:
                self.free.remove(neighbour)
        start = before.offset if before else given.offset
        end = after.end if after else given.end
        self._insert(Range(start, end - start))

    def _insert(self, r: Range) -> None:
        self.free.append(r)
        self.free.sort(key=lambda r: r.offset)
