"""A short chaos run over the fast lane, and one over TCP. launch/chaos.sh runs as long as one likes."""

import os

import pytest
from chaos import Chaos

SECONDS = float(os.environ.get("MEDIAGATE_CHAOS_SECONDS", "10"))
# The same faults in the same order each time; launch/chaos.sh finds others.
SEED = 20260801


@pytest.mark.parametrize("tls", [None, "tcp,self"])
def test_whatever_dies_or_stands_still_no_answer_is_wrong_and_nothing_is_lost(tls):
    chaos = Chaos(SECONDS, SEED, tls)
    assert chaos.run() == 0, chaos.problems
