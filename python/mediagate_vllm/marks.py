"""Marks: how a worker learns that all pixels of a push are there (docs/PROTOCOL.md, Marks).

32 bytes that the gateway writes behind the pixels, when these have arrived. Who has the reference knows where it will
stand and what it will be, and looks there. It is a MAC, since pixels are chosen by strangers, and must not be taken for
the mark of a push that is to come; one that is torn, late or of an earlier push is not the one that is looked for.
"""

from .macs import mac

MARK_BYTES = 32
ALIGNMENT_BYTES = 64
"""A mark stands in one cache line."""


def behind(length: int) -> int:
    """Where the mark of `length` bytes of pixels stands, from the start of its slot."""
    return -(-length // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def slot_bytes(length: int) -> int:
    """Of a slot that takes `length` bytes of pixels and their mark."""
    return behind(length) + MARK_BYTES


def mark(grant_key: bytes, grant: int, generation: int, offset: int, length: int) -> bytes:
    """Of the push with this generation of a grant, of `length` bytes into the slot at `offset` of the grant."""
    return bytes.fromhex(mac(grant_key, "mediagate landed v1", f"{grant}/{generation}/{offset}/{length}"))
