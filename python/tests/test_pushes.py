"""The life of a push against the plainest model of it: random events, and both must agree after each."""

import random

import pytest

from mediagate_vllm.errors import Refused
from mediagate_vllm.pushes import Pushes


class Model:
    """Remembers everything for ever, and looks at all of it for each answer."""

    def __init__(self) -> None:
        self.events: dict[int, list[tuple]] = {}

    def _of(self, generation: int, kind: str) -> list[tuple]:
        return [e for e in self.events.get(generation, []) if e[0] == kind]

    def add(self, generation: int, *event: object) -> None:
        self.events.setdefault(generation, []).append(event)

    def uses(self, generation: int) -> int | None:
        claims = self._of(generation, "claim")
        return claims[0][1] if claims else None

    def waiting(self, generation: int) -> list[object]:
        gone = {e[1] for kind in ("begun", "left") for e in self._of(generation, kind)}
        return [e[2] for e in self._of(generation, "claim") if e[2] not in gone]

    def copying(self, generation: int) -> int:
        return len(self._of(generation, "begun")) - len(self._of(generation, "copied"))

    def closed(self, generation: int) -> bool:
        over = len(self._of(generation, "copied")) + len(self._of(generation, "left"))
        return bool(self._of(generation, "closed")) or over == self.uses(generation)

    def finished(self, generation: int) -> bool:
        return self.closed(generation) and not self.copying(generation)

    def claim(self, generation: int, uses: int) -> str:
        if self.closed(generation):
            return "stale"
        if self.uses(generation) not in (None, uses):
            return "bad"
        if len(self._of(generation, "claim")) >= uses:
            return "stale"
        return "wait"


@pytest.mark.parametrize("seed", range(10))
def test_random_events(seed: int):
    rng = random.Random(seed)
    pushes: Pushes[int] = Pushes()
    model = Model()
    for claim in range(3000):
        generation = max(1, claim // 40 + rng.randint(-3, 3))
        match rng.choice(["claim", "claim", "landed", "copied", "copied", "leave", "close"]):
            case "claim":
                uses = rng.choice([1, 2, 2, 3])
                expected = model.claim(generation, uses)
                try:
                    pushes.claim(generation, uses, claim)
                    got = "wait"
                except Refused as refusal:
                    got = refusal.kind
                assert got == expected
                if got == "wait":
                    model.add(generation, "claim", uses, claim)
            case "landed" if waiting := model.waiting(generation):
                lucky = rng.choice(waiting)
                pushes.landed(generation, lucky)
                model.add(generation, "begun", lucky)
            case "copied" if model.copying(generation):
                pushes.copied(generation)
                model.add(generation, "copied")
            case "leave" if waiting := model.waiting(generation):
                leaver = rng.choice(waiting)
                pushes.leave(generation, leaver)
                model.add(generation, "left", leaver)
            case "close" if rng.random() < 0.3:
                waiting = model.waiting(generation) if not model.closed(generation) else []
                assert pushes.close(generation) == waiting
                model.add(generation, "closed")
                for c in waiting:
                    model.add(generation, "left", c)
        for g in range(max(1, generation - 6), generation + 7):
            assert pushes.is_finished(g) == model.finished(g), g
            assert pushes.is_copying(g) == (model.copying(g) > 0), g
    assert len(pushes.above) <= 4096


def test_what_is_finished_is_bounded_and_old_ones_are_stale():
    pushes: Pushes[str] = Pushes(max_finished=100)
    pushes.claim(5, 1, "waits")
    for generation in range(10, 100_000, 2):
        pushes.close(generation)
        assert len(pushes.above) <= 100
    assert pushes.is_finished(11)  # skipped, and forgotten
    with pytest.raises(Refused, match="over"):
        pushes.claim(12, 1, "late")
    pushes.landed(5, "waits")  # a live one is not forgotten, however old
    pushes.copied(5)
    assert pushes.is_finished(5)


def test_pushes_whose_last_uses_nobody_asks_for_are_bounded():
    pushes: Pushes[str] = Pushes(max_live=10)
    for generation in range(1, 6):
        pushes.claim(generation, 1, "waits")
    for generation in range(6, 1000):
        pushes.claim(generation, 2, "first of two")
        pushes.landed(generation, "first of two")
        pushes.copied(generation)
        assert len(pushes.live) <= 10
    assert pushes.is_finished(6)
    pushes.claim(999, 2, "second")
    assert not any(pushes.is_finished(generation) for generation in range(1, 6))


def test_more_waits_than_the_bound_are_late():
    pushes: Pushes[str] = Pushes(max_live=2)
    pushes.claim(1, 1, "a")
    pushes.claim(2, 1, "b")
    with pytest.raises(Refused) as refusal:
        pushes.claim(3, 1, "c")
    assert refusal.value.kind == "late"
    pushes.leave(1, "a")
    pushes.claim(3, 1, "c")
