"""Random PNGs written chunk by chunk, in all modes that Pillow reads and does not write, and broken where Pillow looks
closely: rows too few and too many, filters that there are not, zlib streams cut, lengthened and with wrong checksums,
divided into chunks just there, chunks cut, in the wrong order, or announced wrongly."""

import random
import struct
import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
MODES = [(depth, 0) for depth in (1, 2, 4, 8, 16)] + [(depth, 3) for depth in (1, 2, 4, 8)]
MODES += [(depth, colour) for colour in (2, 4, 6) for depth in (8, 16)]
SIDES = [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 60]
# Every how many rows, from which on, every how many columns, from which on.
PASSES = [(8, 0, 8, 0), (8, 0, 8, 4), (8, 4, 4, 0), (4, 0, 4, 2), (4, 2, 2, 0), (2, 0, 2, 1), (2, 1, 1, 0)]


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def row_lengths(size: tuple[int, int], bits: int, interlaced: bool) -> list[int]:
    width, height = size
    passes = PASSES if interlaced else [(1, 0, 1, 0)]
    return [
        ((width - column + column_step - 1) // column_step * bits + 7) // 8
        for row_step, row, column_step, column in passes
        for _ in range(row, height, row_step)
        if column < width
    ]


def image_data(rng: random.Random, lengths: list[int]) -> bytes:
    """Filtered rows, one in four times not those that there should be."""
    fault = rng.choice(["few", "more", "junk", "filter"]) if rng.random() < 0.25 else ""
    if fault == "few":
        lengths = lengths[: rng.randint(0, len(lengths))]
    if fault == "more":
        lengths = lengths + [rng.choice(lengths)] * rng.randint(1, 3)
    filters = rng.choice([[0], [1], [2], [3], [4], [0, 1, 2, 3, 4]])
    kind = rng.choice(["noise", "zeros", "ramp", "sparse"])
    rows = []
    for length in lengths:
        if kind == "noise":
            row = rng.randbytes(length)
        elif kind == "ramp":
            row = bytes(at * 3 % 256 for at in range(length))
        else:
            row = bytes(rng.choice([0, 0, 0, 0, 0, 1, 255]) if kind == "sparse" else 0 for _ in range(length))
        rows.append(bytes([rng.choice(filters)]) + row)
    if fault == "filter":
        at = rng.randrange(len(rows))
        rows[at] = bytes([rng.choice([5, 6, 128, 255])]) + rows[at][1:]
    return b"".join(rows) + (rng.randbytes(rng.randint(1, 300)) if fault == "junk" else b"")


def deflate(rng: random.Random, data: bytes) -> bytes:
    """With all kinds of blocks; two in three times broken at its end."""
    window = rng.choice([15, 15, 15, 9])
    packer = zlib.compressobj(
        rng.choice([0, 1, 6, 9]), 8, window, rng.choice([1, 8, 9]), rng.choice([0, 0, 1, 2, 3, 4])
    )
    stream = b""
    while data:
        length = rng.choice([len(data), len(data), rng.randint(1, len(data))])
        stream += packer.compress(data[:length])
        data = data[length:]
        if rng.random() < 0.15:
            stream += packer.flush(
                rng.choice([zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_PARTIAL_FLUSH, zlib.Z_BLOCK])
            )
    stream += packer.flush()
    end = rng.choice(["whole", "whole", "cut", "cut", "sum", "longer"])
    if end == "cut":
        return stream[: -rng.randint(1, 8)] if rng.random() < 0.8 else stream[: rng.randint(0, len(stream))]
    if end == "sum":
        at = -rng.randint(1, 4)
        return stream[:at] + bytes([stream[at] ^ 1 << rng.randrange(8)]) + stream[len(stream) + at + 1 :]
    if end == "longer":
        return stream + rng.choice([rng.randbytes(rng.randint(1, 9)), b"\0", zlib.compress(b"another")])
    return stream


def parts(rng: random.Random, stream: bytes) -> list[bytes]:
    """The stream in up to six parts, some of them empty, most of them divided near its end."""
    length = len(stream)
    near = [max(0, length - rng.randint(0, 12)) for _ in range(5)]
    cuts = sorted(rng.choice([at, at, rng.randint(0, length)]) for at in near[: rng.choice([0, 0, 0, 1, 1, 2, 5])])
    return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, length], strict=True)]


def picture(rng: random.Random) -> bytes:
    depth, colour = rng.choice(MODES)
    size = frame = (rng.choice(SIDES), rng.choice(SIDES))
    if rng.random() < 0.02:
        size = frame = rng.choice([(1, 300), (300, 1), (700, 300), (16000, 3)])
    interlaced, animated = rng.random() < 0.35, rng.random() < 0.2
    header = struct.pack(">IIBBBBB", *size, depth, colour, 0, 0, interlaced)
    chunks = [chunk(b"IHDR", header)]
    if colour == 3:
        chunks.append(chunk(b"PLTE", rng.randbytes(3 * rng.choice([1, 2, 16, 256]))))
    if rng.random() < 0.25:
        length = {0: 2, 2: 6}.get(colour, rng.randint(1, 20))
        chunks.append(chunk(b"tRNS", rng.choice([bytes(length), rng.randbytes(length)])))
    sequence = 0
    if animated:
        frame = rng.choice([size, tuple(rng.randint(1, side) for side in size)])
        place = [rng.randint(0, side - part) for side, part in zip(size, frame, strict=True)]
        control = struct.pack(">5I2H2B", 0, *frame, *place, 1, 10, rng.randint(0, 2), rng.randint(0, 1))
        chunks += [chunk(b"acTL", struct.pack(">II", rng.randint(1, 3), 0)), chunk(b"fcTL", control)]
        sequence = 1
    in_frames = animated and rng.random() < 0.6
    lengths = row_lengths(frame, depth * CHANNELS[colour], interlaced)
    for part in parts(rng, deflate(rng, image_data(rng, lengths))):
        if in_frames:
            chunks.append(chunk(b"fdAT", struct.pack(">I", sequence) + part))
            sequence += 1
        else:
            chunks.append(chunk(b"IDAT", part))
        if rng.random() < 0.04:
            chunks.append(rng.choice([chunk(b"tEXt", b"a\0b"), chunk(b"IEND", b""), b"\0\0\0\1bad!x"]))
    end = chunk(b"IEND", b"")
    cut_data = struct.pack(">I", rng.choice([5, 100, 2**32 - 1])) + b"IDAT" + rng.randbytes(3)
    chunks.append(rng.choice([end, end, end, end, b"", end[: rng.randint(0, 11)], cut_data, rng.randbytes(9)]))
    if rng.random() < 0.1:
        rearrange(rng, chunks)
    file = SIGNATURE + b"".join(chunks)
    return file[: -rng.randint(1, 30)] if rng.random() < 0.1 else file


def rearrange(rng: random.Random, chunks: list[bytes]) -> None:
    """Moves or repeats a chunk, or gives it another name or length, with the right checksum."""
    at, other = rng.randrange(len(chunks)), rng.randrange(len(chunks))
    change = rng.choice(["move", "repeat", "name", "length"])
    if change == "move":
        chunks.insert(other, chunks.pop(at))
    elif change == "repeat":
        chunks.insert(other, chunks[at])
    elif change == "name" and len(chunks[at]) >= 12:
        names = [
            b"IDAT",
            b"fdAT",
            b"DDAT",
            b"IEND",
            b"tRNS",
            b"PLTE",
            b"IHDR",
            b"acTL",
            b"fcTL",
            b"zTXt",
            b"gAMA",
            b"any_",
        ]
        chunks[at] = chunk(rng.choice(names), chunks[at][8:-4])
    elif change == "length" and len(chunks[at]) >= 12:
        content = chunks[at][8:-4] + bytes(4)
        chunks[at] = chunk(chunks[at][4:8], content[: max(0, len(content) - rng.choice([0, 1, 2, 3, 5, 6, 8, 12]))])
