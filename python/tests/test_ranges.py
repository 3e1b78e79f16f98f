"""Granted ranges never overlap, are aligned, and all come back."""

import random

from mediagate_vllm.ranges import Range, Ranges

PAGE = 4096


def test_random_grants_against_a_bitmap():
    rng = random.Random(1)
    pages = 64
    ranges, taken, used = Ranges(pages * PAGE), [], [False] * pages
    for _ in range(5000):
        if taken and rng.random() < 0.5:
            given = taken.pop(rng.randrange(len(taken)))
            ranges.give_back(given)
            used[given.offset // PAGE : given.end // PAGE] = [False] * (given.length // PAGE)
            continue
        most, least = rng.randint(1, 20) * PAGE + rng.randint(0, PAGE - 1), rng.randint(1, 5) * PAGE
        if (got := ranges.take(most, least)) is None:
            free_runs = "".join("x" if u else "." for u in used).split("x")
            assert max(map(len, free_runs)) * PAGE < min(most - most % PAGE, least)
            continue
        assert got.offset % PAGE == got.length % PAGE == 0
        assert not any(used[got.offset // PAGE : got.end // PAGE])
        assert got.length == most - most % PAGE or got.length >= least
        used[got.offset // PAGE : got.end // PAGE] = [True] * (got.length // PAGE)
        taken.append(got)
    for given in taken:
        ranges.give_back(given)
    assert ranges.free == [Range(0, pages * PAGE)]


def test_what_does_not_fit_gets_the_longest():
    ranges = Ranges(10 * PAGE)
    assert ranges.take(8 * PAGE, PAGE) == Range(0, 8 * PAGE)
    assert ranges.take(8 * PAGE, 3 * PAGE) is None
    assert ranges.take(8 * PAGE, PAGE) == Range(8 * PAGE, 2 * PAGE)
    assert ranges.take(PAGE, PAGE) is None
