"""What has become of each push (generation) into one grant.

    never seen --L--> landed --claim--> copying --over--> (after the last use) finished
        |               |
        +--- claim --> waiting --L--> copying
        |               |
        +---- void, or a wait that ran out ----> closed: no new use; finished when the last copy in progress ends

A push is named by one or more uses. Each use is claimed once, and is over once: copied, or left while it waited.
A finished generation is never served again. It is remembered as a floor (all below are finished) and a set above it,
which is bounded: beyond the bound the floor rises, and a push so old that it was skipped is refused as stale.

No clock, no I/O: the lander brings events in, and does what the answers say.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .errors import Refused

MAX_FINISHED = 4096
MAX_LIVE = 4096

Claim = TypeVar("Claim")
Place = tuple[int, int]
"""Where a push lies: (offset in the grant, length), bytes."""


@dataclass(slots=True)
class Push(Generic[Claim]):
    place: Place | None = None
    uses: int | None = None
    claimed: int = 0
    copying: int = 0
    over: int = 0
    closed: bool = False
    waiting: list[tuple[Claim, Place]] = field(default_factory=list)


class Pushes(Generic[Claim]):
    def __init__(self, max_finished: int = MAX_FINISHED, max_live: int = MAX_LIVE) -> None:
        self.live: dict[int, Push[Claim]] = {}
        self.floor = 0
        self.above: set[int] = set()
        self._max_finished = max_finished
        self._max_live = max_live

    def is_finished(self, generation: int) -> bool:
        return generation not in self.live and (generation <= self.floor or generation in self.above)

    def is_copying(self, generation: int) -> bool:
        push = self.live.get(generation)
        return push is not None and push.copying > 0

    @property
    def copying(self) -> int:
        return sum(p.copying for p in self.live.values())

    def claim(self, generation: int, place: Place, uses: int, claim: Claim) -> bool:
        """One use begins. True: copy now. False: `claim` waits, until `landed`, `leave` or `close` names it."""
        if self.is_finished(generation):
            raise Refused("stale", "this push is over")
        push = self.live.get(generation)
        if push is None:
            if not self._make_room():
                raise Refused("late", "too many pushes are under way")
            push = self.live[generation] = Push()
        if push.closed:
            raise Refused("stale", "this push is over")
        if push.uses not in (None, uses):
            raise Refused("bad", "another number of uses than before")
        if push.claimed >= uses:
            raise Refused("stale", "all uses of this push are taken")
        if push.place is not None and push.place != place:
            raise Refused("stale", "other pixels landed")
        push.uses = uses
        push.claimed += 1
        if push.place is None:
            push.waiting.append((claim, place))
            return False
        push.copying += 1
        return True

    def landed(self, generation: int, place: Place) -> tuple[list[Claim], list[Claim]]:
        """All bytes are there. Answers the claims that may copy now, and those that wanted another place (stale)."""
        if self.is_finished(generation):
            return [], []
        push = self.live.get(generation)
        if push is None:
            if not self._make_room():
                self._finish(generation)
                return [], []
            push = self.live[generation] = Push()
        if push.closed or push.place is not None:
            return [], []
        push.place = place
        ready = [c for c, wanted in push.waiting if wanted == place]
        wrong = [c for c, wanted in push.waiting if wanted != place]
        push.waiting.clear()
        push.copying += len(ready)
        push.over += len(wrong)
        self._settle(generation, push)
        return ready, wrong

    def copied(self, generation: int) -> None:
        """The copy of one use has ended, whatever it held."""
        push = self.live[generation]
        push.copying -= 1
        push.over += 1
        self._settle(generation, push)

    def leave(self, generation: int, claim: Claim) -> None:
        """A claim that waited waits no more: that use is over."""
        push = self.live[generation]
        push.waiting = [(c, place) for c, place in push.waiting if c is not claim]
        push.over += 1
        self._settle(generation, push)

    def close(self, generation: int) -> list[Claim]:
        """No use begins from now on. Answers the claims that were waiting; copies in progress go on."""
        if self.is_finished(generation):
            return []
        push = self.live.setdefault(generation, Push())
        push.closed = True
        waiting = [c for c, _ in push.waiting]
        push.waiting.clear()
        push.over += len(waiting)
        self._settle(generation, push)
        return waiting

    def close_all(self) -> list[Claim]:
        return [c for generation in list(self.live) for c in self.close(generation)]

    def _settle(self, generation: int, push: Push[Claim]) -> None:
        if push.uses is not None and push.over >= push.uses:
            push.closed = True
        if push.closed and push.copying == 0:
            del self.live[generation]
            self._finish(generation)

    def _finish(self, generation: int) -> None:
        if generation <= self.floor:
            return
        self.above.add(generation)
        if len(self.above) > self._max_finished:
            self.floor = sorted(self.above)[len(self.above) // 2]
            self.above = {g for g in self.above if g > self.floor}
        while self.floor + 1 in self.above:
            self.floor += 1
            self.above.discard(self.floor)

    def _make_room(self) -> bool:
        """Beyond the bound the oldest push that nobody has asked for makes way."""
        if len(self.live) < self._max_live:
            return True
        idle = next((g for g, p in self.live.items() if not p.waiting and not p.copying), None)
        if idle is None:
            return False
        self.close(idle)
        return True
