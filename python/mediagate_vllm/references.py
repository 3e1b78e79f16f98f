"""References: what stands in a request in place of an image's URL (docs/PROTOCOL.md, References).

A reference is short, whatever the image is, and says everything that the worker must check. Parsing answers only the
question of form; whether the reference is authentic, and its pixels there, is asked by the lander, which has the keys.
"""

import re
from dataclasses import dataclass

from .errors import Refused
from .macs import mac, same

SCHEME = "mediagate://"
PAGE_BYTES = 4096
MAX_LENGTH = 512
MAC_DIGITS = 32
MAX_SIDE = 1 << 20
MAX_USES = 1 << 16
MAX_WAIT_MS = 600_000

_NUMBER = "(0|[1-9][0-9]{0,19})"
_FORM = re.compile(
    f"{SCHEME}(?P<text>([0-9a-f]{{16}})/{_NUMBER}/{_NUMBER}/{_NUMBER}/{_NUMBER}x{_NUMBER}"
    f"/([0-9a-f]{{16}})/([0-9a-f]{{64}})/{_NUMBER}/{_NUMBER})/([0-9a-f]{{{MAC_DIGITS}}})"
)


@dataclass(frozen=True, slots=True)
class Reference:
    """One push as a request names it. Of a shape and a range that can exist; nothing else is known of it yet."""

    worker: str
    grant: int
    generation: int
    offset: int
    height: int
    width: int
    content_hash: str
    media_id: str
    uses: int
    wait_ms: int
    mac: str

    @property
    def length(self) -> int:
        """Bytes of pixels: height x width x RGB."""
        return self.height * self.width * 3

    @property
    def text(self) -> str:
        """What the MAC covers."""
        return (
            f"{self.worker}/{self.grant}/{self.generation}/{self.offset}/{self.height}x{self.width}"
            f"/{self.content_hash}/{self.media_id}/{self.uses}/{self.wait_ms}"
        )

    def is_authentic(self, grant_key: bytes) -> bool:
        return same(reference_mac(grant_key, self.text), self.mac)

    def __str__(self) -> str:
        return f"{SCHEME}{self.text}/{self.mac}"


def reference_mac(grant_key: bytes, text: str) -> str:
    return mac(grant_key, "mediagate reference v1", text)[:MAC_DIGITS]


def parse(url: str) -> Reference:
    """The reference in `url`, or `bad`: numbers have no sign, no leading zero, and 64 bits at most."""
    if len(url) > MAX_LENGTH or (m := _FORM.fullmatch(url)) is None:
        raise Refused("bad", "malformed reference")
    worker, grant, generation, offset, height, width, content_hash, media_id, uses, wait_ms, tag = m.groups()[1:]
    ref = Reference(
        worker, int(grant), int(generation), int(offset), int(height), int(width),
        content_hash, media_id, int(uses), int(wait_ms), tag,
    )  # fmt: skip
    if max(ref.grant, ref.generation, ref.offset) >= 1 << 64 or ref.generation == 0:
        raise Refused("bad", "malformed reference: a number out of range")
    if not (0 < ref.height <= MAX_SIDE and 0 < ref.width <= MAX_SIDE):
        raise Refused("bad", "malformed reference: no such shape")
    if not 0 < ref.uses <= MAX_USES or ref.wait_ms > MAX_WAIT_MS:
        raise Refused("bad", "malformed reference: uses or wait out of range")
    return ref
