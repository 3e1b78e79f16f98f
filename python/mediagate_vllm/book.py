"""The lander's book: which gateway was granted what until when, and which claims wait for which push.

A grant lives as long as its lease is renewed. A lost lease, a detach, or its gateway attaching again retires it: its
references are `gone` at once, but its range stays untouched for a grace time, since a WRITE that its gateway had posted
cannot be called back. A write later than that costs a refused copy (the hash tells), never a wrong pixel.

No I/O and no clock of its own: time comes in as an argument, notifications to gateways go out through `tell`, and
whether a mark is there is asked of `reads`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from .errors import Refused
from .marks import behind, mark, slot_bytes
from .pushes import Pushes
from .ranges import Range, Ranges
from .references import PAGE_BYTES, Reference, parse

MAX_GRANTS = 64
MAX_WAITING = 4096
LEAST_GRANT_BYTES = 1 << 20

Place = tuple[int, int]
"""(offset in the landing memory, length), bytes."""


class State(Enum):
    WAITING = auto()
    COPYING = auto()
    OVER = auto()


@dataclass(eq=False, slots=True)
class Claim:
    """One use of one push, on behalf of an API process. `settle` is called once unless the claim is given up."""

    reference: Reference
    mark_at: int
    """Where the mark of its push will stand, in the landing memory."""
    mark: bytes
    settle: Callable[[Place | Refused], None]
    deadline: float
    state: State = State.OVER
    grant: "Grant | None" = None


@dataclass(eq=False, slots=True)
class Grant:
    id: int
    gateway: str
    agent: str
    key: bytes
    range: Range
    expires: float
    seq: int = -1
    free_at: float | None = None
    """When the range may be granted again; None while the grant is alive."""
    pushes: Pushes[Claim] = field(default_factory=Pushes)


class Book:
    def __init__(
        self,
        worker: str,
        landing_bytes: int,
        *,
        grant_bytes: int,
        lease_seconds: float,
        grace_seconds: float,
        tell: Callable[[str, str], None],
        reads: Callable[[int, bytes], bool],
        freed: Callable[[Grant], None] = lambda _: None,
    ) -> None:
        self.worker = worker
        self.lease_seconds = lease_seconds
        self.waiting: set[Claim] = set()
        self.grants: dict[int, Grant] = {}
        self._grant_bytes = grant_bytes
        self._grace_seconds = grace_seconds
        self._tell, self._reads, self._freed = tell, reads, freed
        self._ranges = Ranges(landing_bytes)
        self._resting: list[Grant] = []  # retired, their ranges not free yet
        self._last_id = 0

    # Grants

    def grant(self, gateway: str, agent: str, key: bytes, want_bytes: int, now: float) -> Grant:
        """A new grant; what this gateway incarnation had before is retired."""
        for old in [g for g in self.grants.values() if g.gateway == gateway]:
            self.retire(old, now)
        if any(g.agent == agent for g in self.grants.values()):
            raise Refused("bad", "this agent is attached under another gateway incarnation")
        if len(self.grants) + len(self._resting) >= MAX_GRANTS:
            raise Refused("late", "too many grants")
        taken = self._ranges.take(min(want_bytes, self._grant_bytes), LEAST_GRANT_BYTES)
        if taken is None:
            raise Refused("late", "no landing memory is free")
        self._last_id += 1
        grant = Grant(self._last_id, gateway, agent, key, taken, now + self.lease_seconds)
        self.grants[grant.id] = grant
        return grant

    def find(self, worker: object, grant: object) -> Grant:
        found = self.grants.get(grant) if worker == self.worker and isinstance(grant, int) else None
        if found is None:
            raise Refused("gone", "unknown incarnation or grant")
        return found

    def renew(self, grant: Grant, seq: int, now: float) -> None:
        if seq <= grant.seq:
            raise Refused("denied", "seq must rise with each renewal")
        grant.seq = seq
        grant.expires = now + self.lease_seconds

    def retire(self, grant: Grant, now: float) -> None:
        del self.grants[grant.id]
        grant.free_at = now + self._grace_seconds
        self._resting.append(grant)
        for claim in grant.pushes.close_all():
            self._refuse(claim, Refused("gone", "the grant was retired"))

    def knows(self, agent: str) -> bool:
        """Whether a grant of this agent is alive, or rests."""
        return any(g.agent == agent for g in (*self.grants.values(), *self._resting))

    # Claims

    def claim(self, url: str, settle: Callable[[Place | Refused], None], now: float) -> Claim:
        """Check a reference in the protocol's order, and begin a use. Raises Refused, settles now, or settles later."""
        ref = parse(url)
        grant = self.find(ref.worker, ref.grant)
        if not ref.is_authentic(grant.key):
            raise Refused("bad", "the reference is not authentic")
        if ref.offset % PAGE_BYTES or ref.offset + slot_bytes(ref.length) > grant.range.length:
            raise Refused("bad", "the slot is not within the grant, or not aligned")
        if len(self.waiting) >= MAX_WAITING:
            raise Refused("late", "too many requests wait for pixels")
        claim = Claim(
            ref,
            grant.range.offset + ref.offset + behind(ref.length),
            mark(grant.key, grant.id, ref.generation, ref.offset, ref.length),
            settle,
            now + ref.wait_ms / 1000,
            grant=grant,
        )
        grant.pushes.claim(ref.generation, ref.uses, claim)
        claim.state = State.WAITING
        self.waiting.add(claim)
        self._look_for(claim)
        return claim

    def look(self) -> None:
        """Whether what claims wait for is there by now."""
        for claim in list(self.waiting):
            self._look_for(claim)

    def copied(self, claim: Claim) -> None:
        """The copy of a claim that was settled with a place has ended: that use of the slot is the gateway's again."""
        if claim.state is not State.COPYING or claim.grant is None:
            return
        claim.state = State.OVER
        claim.grant.pushes.copied(claim.reference.generation)
        if claim.grant.free_at is None:
            self._tell(claim.grant.agent, f"F {claim.grant.id} {claim.reference.generation}")

    def give_up(self, claim: Claim) -> None:
        """The request of this claim is gone. A waiting use is dropped without notice; a copy just ends."""
        if claim.state is State.WAITING and claim.grant is not None:
            self.waiting.discard(claim)
            claim.state = State.OVER
            claim.grant.pushes.leave(claim.reference.generation, claim)
        else:
            self.copied(claim)

    def void(self, grant: Grant, generations: Iterable[int]) -> None:
        for generation in generations:
            for claim in grant.pushes.close(generation):
                self._refuse(claim, Refused("stale", "the gateway called this push back"))

    # Events

    def tick(self, now: float) -> None:
        """Whatever time alone brings: waits that run out, leases that are lost, ranges that are free again."""
        for claim in [c for c in self.waiting if c.deadline <= now]:
            if claim.state is State.WAITING and claim.grant is not None:
                for each in claim.grant.pushes.close(claim.reference.generation):
                    self._refuse(each, Refused("late", "the pixels did not arrive in time"))
        for grant in [g for g in self.grants.values() if g.expires <= now]:
            self.retire(grant, now)
        for grant in [g for g in self._resting if g.free_at is not None and g.free_at <= now and not g.pushes.copying]:
            self._resting.remove(grant)
            self._freed(grant)
            self._ranges.give_back(grant.range)

    # Settling

    def _look_for(self, claim: Claim) -> None:
        if claim.state is not State.WAITING or claim.grant is None or not self._reads(claim.mark_at, claim.mark):
            return
        claim.grant.pushes.landed(claim.reference.generation, claim)
        self.waiting.discard(claim)
        claim.state = State.COPYING
        claim.settle((claim.grant.range.offset + claim.reference.offset, claim.reference.length))

    def _refuse(self, claim: Claim, refusal: Refused) -> None:
        self.waiting.discard(claim)
        claim.state = State.OVER
        claim.settle(refusal)
