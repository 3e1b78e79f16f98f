"""Grants, leases and claims on a clock that the test moves: nothing waits, nothing is timed."""

import pytest

from mediagate_vllm.book import MAX_GRANTS, Book, Claim, Grant
from mediagate_vllm.errors import Refused
from mediagate_vllm.marks import behind, mark
from mediagate_vllm.references import SCHEME, reference_mac

MIB = 1 << 20
WORKER = "a" * 16
KEY = bytes(32)


class Desk:
    """A book, and all that it said."""

    def __init__(self, landing_bytes: int = 8 * MIB, grant_bytes: int = 4 * MIB) -> None:
        self.told: list[tuple[str, str]] = []
        self.freed: list[int] = []
        self.settled: list[object] = []
        self.marks: set[tuple[int, bytes]] = set()
        self.book = Book(
            WORKER,
            landing_bytes,
            grant_bytes=grant_bytes,
            lease_seconds=10,
            grace_seconds=30,
            tell=lambda agent, text: self.told.append((agent, text)),
            reads=lambda offset, text: (offset, text) in self.marks,
            freed=lambda grant: self.freed.append(grant.id),
        )

    def grant(self, gateway: str = "g", now: float = 0, want: int = 4 * MIB) -> Grant:
        return self.book.grant(gateway, f"agent-{gateway}", KEY, want, now)

    def claim(self, grant: Grant, generation: int, now: float = 0, wait_ms: int = 1000, uses: int = 1) -> Claim:
        text = f"{WORKER}/{grant.id}/{generation}/0/1x2/{'0' * 16}/{'0' * 64}/{uses}/{wait_ms}"
        return self.book.claim(f"{SCHEME}{text}/{reference_mac(KEY, text)}", self.settled.append, now)

    def land(self, grant: Grant, generation: int) -> None:
        self.marks.add((grant.range.offset + behind(6), mark(KEY, grant.id, generation, 0, 6)))
        self.book.look()

    def refusals(self) -> list[str]:
        return [s.kind for s in self.settled if isinstance(s, Refused)]


def test_a_claim_gets_its_place_in_the_landing_memory():
    desk = Desk()
    desk.grant("other")
    grant = desk.grant()
    desk.land(grant, 1)
    claim = desk.claim(grant, 1)
    assert desk.settled == [(4 * MIB, 6)]
    assert desk.told == []
    desk.book.copied(claim)
    desk.book.copied(claim)  # said twice: no second F
    assert desk.told == [("agent-g", f"F {grant.id} 1")]


def test_claims_that_wait_get_their_place_when_their_mark_is_there():
    desk = Desk()
    grant = desk.grant()
    desk.claim(grant, 1, uses=2)
    desk.claim(grant, 2)
    desk.land(grant, 1)
    assert desk.settled == [(0, 6)]
    desk.claim(grant, 1, uses=2)
    assert desk.settled == [(0, 6), (0, 6)], "the mark stays where it is"
    assert len(desk.book.waiting) == 1


def test_waits_run_out_together_and_end_the_push():
    desk = Desk()
    grant = desk.grant()
    desk.claim(grant, 1, now=0, wait_ms=1000, uses=2)
    desk.claim(grant, 1, now=0.5, wait_ms=1000, uses=2)
    desk.book.tick(0.999)
    assert desk.settled == []
    desk.book.tick(1.0)
    assert desk.refusals() == ["late", "late"]
    assert not desk.book.waiting
    with pytest.raises(Refused, match="over"):
        desk.claim(grant, 1)
    assert desk.told == []


def test_a_lost_lease_is_gone_and_rests():
    desk = Desk()
    grant = desk.grant(now=0)
    desk.book.renew(grant, 1, now=8)
    desk.book.tick(17)
    assert desk.claim(grant, 1, now=17, wait_ms=5000) in desk.book.waiting
    desk.book.tick(18)
    assert desk.refusals() == ["gone"]
    with pytest.raises(Refused) as refusal:
        desk.claim(grant, 2)
    assert refusal.value.kind == "gone"
    desk.grant("second", now=18)
    with pytest.raises(Refused) as refusal:
        desk.grant("third", now=20)
    assert refusal.value.kind == "late"
    desk.book.tick(47)
    assert desk.freed == []
    desk.book.tick(48)
    assert desk.freed[0] == grant.id
    assert desk.grant("third", now=48).range == grant.range


def test_a_resting_range_waits_for_its_reader():
    desk = Desk()
    grant = desk.grant()
    desk.land(grant, 1)
    claim = desk.claim(grant, 1)
    desk.book.retire(grant, 0)
    desk.book.tick(100)
    assert desk.freed == []
    desk.book.copied(claim)
    assert desk.told == []  # its gateway asked to be forgotten
    desk.book.tick(100)
    assert desk.freed == [grant.id]


def test_attaching_again_retires_the_old_grant():
    desk = Desk()
    first, second = desk.grant(), desk.grant()
    assert list(desk.book.grants) == [second.id]
    assert first.range != second.range
    desk.land(first, 1)
    assert desk.claim(second, 1) in desk.book.waiting


def test_renewals_are_not_replayed():
    desk = Desk()
    grant = desk.grant()
    desk.book.renew(grant, 5, now=1)
    for seq in (5, 4, 0):
        with pytest.raises(Refused) as refusal:
            desk.book.renew(grant, seq, now=2)
        assert refusal.value.kind == "denied"
    assert grant.expires == 11


def test_an_agent_has_one_gateway():
    desk = Desk()
    desk.grant()
    with pytest.raises(Refused) as refusal:
        desk.book.grant("thief", "agent-g", KEY, MIB, 0)
    assert refusal.value.kind == "bad"


def test_grants_are_bounded_with_those_that_rest():
    desk = Desk(landing_bytes=1024 * MIB, grant_bytes=MIB)
    for n in range(MAX_GRANTS):
        desk.grant("one" if n % 2 else f"g{n}", now=0)
    with pytest.raises(Refused) as refusal:
        desk.grant("more", now=0)
    assert refusal.value.kind == "late"


def test_giving_up_while_waiting_sends_nothing_and_while_copying_frees():
    desk = Desk()
    grant = desk.grant()
    waiting = desk.claim(grant, 1)
    desk.book.give_up(waiting)
    desk.land(grant, 1)
    assert (desk.settled, desk.told) == ([], [])
    desk.land(grant, 2)
    copying = desk.claim(grant, 2)
    desk.book.give_up(copying)
    assert desk.told == [("agent-g", f"F {grant.id} 2")]
    assert not grant.pushes.live


def test_void_refuses_waits_and_leaves_copies():
    desk = Desk()
    grant = desk.grant()
    desk.land(grant, 1)
    copying, _ = desk.claim(grant, 1), desk.claim(grant, 2)
    desk.book.void(grant, [1, 2, 3])
    assert desk.refusals() == ["stale"]
    assert [grant.pushes.is_copying(g) for g in (1, 2, 3)] == [True, False, False]
    desk.book.copied(copying)
    assert all(grant.pushes.is_finished(g) for g in (1, 2, 3))


def test_checks_come_in_the_order_of_the_protocol():
    desk = Desk()
    grant = desk.grant()

    def kind(worker: str = WORKER, grant_id: int = grant.id, offset: int = 0, width: int = 2, key: bytes = KEY) -> str:
        text = f"{worker}/{grant_id}/9/{offset}/1x{width}/{'0' * 16}/{'0' * 64}/1/0"
        with pytest.raises(Refused) as refusal:
            desk.book.claim(f"{SCHEME}{text}/{reference_mac(key, text)}", desk.settled.append, 0)
        return refusal.value.kind + ": " + refusal.value.message

    assert kind(worker="b" * 16, offset=1, key=bytes(31) + b"1").startswith("gone")
    assert kind(grant_id=99, offset=1, key=bytes(31) + b"1").startswith("gone")
    assert "authentic" in kind(offset=1, key=bytes(31) + b"1")
    assert "aligned" in kind(offset=1)
    assert "within" in kind(offset=4 * MIB)
    assert "within" in kind(offset=4 * MIB - 4096, width=1365)  # the mark would stand in the next grant
    desk.book.void(grant, [9])
    assert kind().startswith("stale")
