"""EXIF blocks whose values are of types that Pillow expects, and of others."""

import random
import struct

from PIL import TiffTags

ORIENTATION, EXIF, GPS, INTEROPERABILITY = 274, 34665, 34853, 40965
# Tags of a directory, and its group in Pillow's table.
GROUPS = [
    (sorted(set(TiffTags.TAGS_V2) - {ORIENTATION, EXIF, GPS, INTEROPERABILITY}), None),
    ([33434, 33437, 36864, 37500, 40960, 41730], EXIF),
    (list(range(32)), GPS),
    ([1, 2, 3], INTEROPERABILITY),
]
FORMATS = {1: "B", 2: "B", 3: "H", 4: "I", 5: "II", 6: "b", 7: "B", 8: "h", 9: "i", 10: "ii", 11: "f", 12: "d", 13: "I"}
NUMBERS = [0, 1, 2, 5, 72, 255, 256, 65535, 65536, 2**31, 2**32 - 1]


def values(rng: random.Random, order: str, kind: int, count: int) -> bytes:
    code = FORMATS[kind]
    if code in "fd":
        return b"".join(struct.pack(order + code, rng.choice([0.0, 0.5, 7.0, -1.0])) for _ in range(count))
    numbers = [rng.choice(NUMBERS) for _ in range(count * len(code))]
    size = struct.calcsize(code[0])
    return b"".join((number % 256**size).to_bytes(size, "little" if order == "<" else "big") for number in numbers)


def entry(rng: random.Random, tag: int, group: int | None) -> tuple[int, int, int]:
    """Tag, type and number of values."""
    info = TiffTags.lookup(tag, group)
    if rng.random() < 0.75:
        return tag, info.type or rng.choice([2, 3, 4, 5, 7]), max(1, info.length or 1)
    return tag, rng.choice(list(FORMATS)), rng.choice([1, 1, 1, 2, 3])


def block(rng: random.Random) -> bytes:
    """The directory, that of EXIF proper, that of GPS and that of interoperability, which may be left out."""
    order = rng.choice("<>")
    directories = [[entry(rng, tag, group) for tag in rng.sample(tags, rng.randint(0, 3))] for tags, group in GROUPS]
    directories[0] += [(ORIENTATION, 3, 1), *[(tag, 4, 1) for tag in (EXIF, GPS) if rng.random() < 0.6]]
    directories[1] += [(INTEROPERABILITY, 4, 1)] if rng.random() < 0.5 else []
    starts = [8 + sum(6 + 12 * len(before) for before in directories[:index]) for index in range(5)]
    known = {EXIF: starts[1], GPS: starts[2], INTEROPERABILITY: starts[3]}
    out, behind = b"", b""
    for directory in directories:
        out += struct.pack(order + "H", len(directory))
        for tag, kind, count in sorted(directory):
            if tag == ORIENTATION:
                stored = struct.pack(order + "H", rng.randint(1, 8))
            elif tag in known:
                stored = struct.pack(order + "I", known[tag])
            else:
                stored = values(rng, order, kind, count)
            if len(stored) > 4:
                place = starts[4] + len(behind)
                behind += stored
                stored = struct.pack(order + "I", place)
            out += struct.pack(order + "HHI", tag, kind, count) + stored.ljust(4, b"\0")
        out += bytes(4)
    head = {"<": b"II\x2a\0", ">": b"MM\0\x2a"}[order] + struct.pack(order + "I", 8)
    return b"Exif\0\0" + head + out + behind
