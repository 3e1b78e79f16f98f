"""What has become of each push (generation) into one grant.

    never seen --claim--> waiting --its mark is there--> copying --over--> (after the last use) finished
        |                    |
        +--------------------+-- void, or a wait that ran out --> closed: no new use; finished when the last copy ends

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


@dataclass(slots=True)
class Push(Generic[Claim]):
    uses: int | None = None
    claimed: int = 0
    copying: int = 0
    over: int = 0
    closed: bool = False
    waiting: list[Claim] = field(default_factory=list)


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

    def claim(self, generation: int, uses: int, claim: Claim) -> None:
        """One use begins. `claim` waits, until `landed`, `leave` or `close` names it."""
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
        push.uses = uses
        push.claimed += 1
        push.waiting.append(claim)

    def landed(self, generation: int, claim: Claim) -> None:
        """What a waiting claim wants is there: it copies."""
        push = self.live[generation]
        push.waiting.remove(claim)
        push.copying += 1

    def copied(self, generation: int) -> None:
        """The copy of one use has ended, whatever it held."""
        push = self.live[generation]
        push.copying -= 1
        push.over += 1
        self._settle(generation, push)

    def leave(self, generation: int, claim: Claim) -> None:
        """A claim that waited waits no more: that use is over."""
        push = self.live[generation]
        push.waiting.remove(claim)
        push.over += 1
        self._settle(generation, push)

    def close(self, generation: int) -> list[Claim]:
        """No use begins from now on. Answers the claims that were waiting; copies in progress go on."""
        if self.is_finished(generation):
            return []
        push = self.live.setdefault(generation, Push())
        push.closed = True
        waiting, push.waiting = push.waiting, []
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
        """Beyond the bound the oldest push of which nobody wants more just now makes way."""
        if len(self.live) < self._max_live:
            return True
        idle = next((g for g, p in self.live.items() if not p.waiting and not p.copying), None)
        if idle is None:
            return False
        self.close(idle)
        return True
