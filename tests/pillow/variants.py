"""Variants of the simple formats that Pillow reads and does not write, whole and damaged.

Prints what vLLM makes of each: a JSON line an image.

Usage: variants.py SEED COUNT. Needs pillow==13.0.0.
"""

import base64
import io
import json
import random
import struct
import sys
import zlib

from PIL import Image

from exif_blocks import block
from reference import describe

# Damaged sizes are not to cost memory; the test has the same limit.
Image.MAX_IMAGE_PIXELS = 2_000_000

SIDES = [1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 40]
VALUES = [0, 1, 2, 3, 4, 8, 16, 24, 32, 64, 127, 128, 254, 255]
WORDS = [0, 1, 255, 256, 32767, 32768, 65535]


def u16(value: int) -> bytes:
    return struct.pack("<H", value & 0xFFFF)


def u32(value: int) -> bytes:
    return struct.pack("<I", value & 0xFFFFFFFF)


def content(rng: random.Random, length: int) -> bytes:
    """Noise, a ramp or one value."""
    kind = rng.randrange(3)
    if kind == 0:
        return rng.randbytes(length)
    if kind == 1:
        return bytes((at * 3 + at // 7) & 255 for at in range(length))
    return bytes([rng.randrange(256)]) * length


def sides(rng: random.Random) -> tuple[int, int]:
    return rng.choice(SIDES), rng.choice(SIDES)


# BMP and ICO

MASKS = [
    (0xFF0000, 0xFF00, 0xFF, 0),
    (0xFF000000, 0xFF0000, 0xFF00, 0),
    (0xFF000000, 0xFF00, 0xFF, 0),
    (0xFF000000, 0xFF0000, 0xFF00, 0xFF),
    (0xFF, 0xFF00, 0xFF0000, 0xFF000000),
    (0xFF0000, 0xFF00, 0xFF, 0xFF000000),
    (0xFF000000, 0xFF00, 0xFF, 0xFF0000),
    (0, 0, 0, 0),
    (0xF800, 0x7E0, 0x1F, 0),
    (0x7C00, 0x3E0, 0x1F, 0),
]


def runs(rng: random.Random, width: int, height: int, nibbles: bool) -> bytes:
    out = b""
    for _ in range(height):
        column = 0
        while column < width:
            left = width - column
            kind = rng.random()
            if kind < 0.6:
                count = rng.randint(1, min(255, left + rng.choice([0, 0, 0, 3])))
                out += bytes([count, rng.randrange(256)])
            elif kind < 0.9 and left >= 3:
                count = rng.randint(3, min(255, left))
                stored = (count + 1) // 2 if nibbles else count
                out += bytes([0, count]) + rng.randbytes(stored + stored % 2)
            elif kind < 0.95:
                count = 2
                out += bytes([0, 2, rng.choice([0, 1, 2, 5]), rng.choice([0, 0, 1])])
            else:
                break
            column += count
        out += b"\0\0" if rng.random() < 0.95 else b""
    return out + (b"\0\1" if rng.random() < 0.8 else b"")


def bitmap_palette(rng: random.Random, count: int, entry_bytes: int) -> bytes:
    if rng.random() < 0.3:
        greys = [0, 255] if count == 2 else range(count)
        colours = [bytes([grey & 255] * 3) for grey in greys]
    else:
        colours = [rng.randbytes(3) for _ in range(count)]
    return b"".join(colour.ljust(entry_bytes, b"\0") for colour in colours)


def bitmap(rng: random.Random, in_icon: bool = False) -> tuple[bytes, bytes, tuple[int, int, int]]:
    """Header with palette, pixels; width, height and bits."""
    header_bytes = 40 if in_icon else rng.choice([40, 40, 12, 52, 56, 64, 108, 124])
    width, height = sides(rng)
    bits = rng.choice([1, 4, 8, 8, 16, 24, 32, 32])
    old = header_bytes == 12
    compressions = {1: [0, 1, 2], 4: [0, 2], 8: [0, 1], 16: [0, 3], 24: [0, 3], 32: [0, 3]}
    compression = 0 if old else rng.choice(compressions[bits])
    colours = rng.choice([0, 0, 1 << bits, rng.randint(1, 1 << bits), 2, 1]) if bits <= 8 and not old else 0
    rows = height * 2 if in_icon else height
    if old:
        header = u32(12) + u16(width) + u16(rows) + u16(1) + u16(bits)
    else:
        rows = -rows if rng.random() < 0.25 else rows
        header = u32(header_bytes) + u32(width) + u32(rows) + u16(1) + u16(bits) + u32(compression)
        header += bytes(12) + u32(colours) + u32(0)
        masks = b"".join(map(u32, rng.choice(MASKS)))
        if header_bytes > 40:
            header += (masks + bytes(68))[: header_bytes - 40]
        elif compression == 3:
            header += masks[:12]
    if bits <= 8:
        header += bitmap_palette(rng, colours or 1 << bits, 3 if old else 4)
    if compression in (1, 2):
        pixels = runs(rng, width, height, compression == 2)
    else:
        pixels = content(rng, (width * bits + 31) // 32 * 4 * height)
    return header, pixels, (width, height, bits)


def bmp(rng: random.Random) -> bytes:
    header, pixels, _ = bitmap(rng)
    if rng.random() < 0.25:
        return header + pixels
    offset = rng.choice([14 + len(header)] * 4 + [0, 14 + struct.unpack_from("<I", header)[0]])
    return b"BM" + u32(14 + len(header) + len(pixels)) + u32(0) + u32(offset) + header + pixels


def ico(rng: random.Random) -> bytes:
    count = rng.choice([1, 1, 2, 3])
    at = 6 + 16 * count
    directory, pictures = b"", b""
    for _ in range(count):
        header, pixels, (width, height, bits) = bitmap(rng, in_icon=True)
        picture = header + pixels + content(rng, (width + 31) // 32 * 4 * height)
        bits = rng.choice([bits] * 6 + [0, 32])
        directory += bytes([width, height, rng.choice([0, 2, 16, 255]), 0]) + u16(1) + u16(bits)
        directory += u32(len(picture)) + u32(at + len(pictures))
        pictures += picture
    return u32(1 << 16) + u16(count) + directory + pictures


# The PPM family


def space(rng: random.Random) -> bytes:
    return rng.choice([b" "] * 5 + [b"\n"] * 5 + [b"\t", b"\r\n", b"\x0b", b"\n#c\n", b" # x\r"])


def digits(rng: random.Random, value: int) -> bytes:
    text = b"%d" % value
    kind = rng.random()
    if kind < 0.02:
        return b"0" * rng.randint(1, 9) + text
    if kind < 0.04:
        return rng.choice([b"+", b"-"]) + text
    if kind < 0.06:
        return text[:1] + rng.choice([b"_", b"#z\n", b"."]) + text[1:]
    return text


def pnm(rng: random.Random) -> bytes:
    magic = rng.choice([b"P1", b"P2", b"P3", b"P4", b"P5", b"P6"])
    width, height = sides(rng)
    most = rng.choice([255, 255, 255, 1, 3, 7, 100, 254, 256, 1000, 4095, 65534, 65535, 65536])
    out = magic + space(rng) + digits(rng, width) + space(rng) + digits(rng, height)
    if magic not in (b"P1", b"P4"):
        out += space(rng) + digits(rng, most)
    out += b"\n"
    values = width * height * (3 if magic in (b"P3", b"P6") else 1)
    if magic == b"P1":
        return out + rng.choice([b"", b" "]).join(rng.choice([b"0", b"1"]) for _ in range(values))
    if magic in (b"P2", b"P3"):
        return out + b"".join(digits(rng, rng.randint(0, most)) + space(rng) for _ in range(values))
    if magic == b"P4":
        return out + content(rng, (width + 7) // 8 * height)
    return out + content(rng, values * (2 if most > 255 else 1))


# TGA and QOI


def tga(rng: random.Random) -> bytes:
    kind = rng.choice([1, 2, 3, 9, 10, 11])
    depth = {1: 8, 2: rng.choice([16, 24, 32]), 3: rng.choice([8, 8, 16, 1])}[kind & 7]
    mapped = kind & 7 == 1 or rng.random() < 0.05
    first = rng.choice([0, 0, 0, 1, 200]) if mapped else 0
    count, entry_bits = (rng.choice([256, 16, 2, 1]), rng.choice([16, 24, 32])) if mapped else (0, 0)
    width, height = sides(rng)
    identification = rng.randbytes(rng.choice([0, 0, 5, 255]))
    flags = rng.choice([0, 0x10, 0x20, 0x30]) | rng.choice([0, 8])
    out = bytes([len(identification), mapped, kind]) + u16(first) + u16(count) + bytes([entry_bits])
    out += bytes(4) + u16(width) + u16(height) + bytes([depth, flags]) + identification
    out += rng.randbytes(count * (entry_bits // 8))
    pixel_bytes = max(1, depth // 8)
    if kind < 8:
        return out + content(rng, (width * depth + 7) // 8 * height)
    done = 0
    while done < width * height:
        here = rng.randint(1, min(128, width - done % width + (3 if rng.random() < 0.02 else 0)))
        if rng.random() < 0.5:
            out += bytes([127 + here]) + rng.randbytes(pixel_bytes)
        else:
            here = rng.randint(1, min(128, width * height - done))
            out += bytes([here - 1]) + rng.randbytes(pixel_bytes * here)
        done += here
    return out


def qoi(rng: random.Random) -> bytes:
    width, height = sides(rng)
    out = b"qoif" + struct.pack(">II", width, height) + bytes([rng.choice([3, 4, 3, 4, 0]), rng.choice([0, 1])])
    done = 0
    while done < width * height:
        kind = rng.randrange(6)
        if kind < 2:
            out += bytes([0xFE + kind]) + rng.randbytes(3 + kind)
        elif kind == 2:
            out += bytes([rng.randrange(128)])
        elif kind == 3:
            out += bytes([128 | rng.randrange(64), rng.randrange(256)])
        else:
            run = rng.randrange(6)
            out += bytes([192 | run])
            done += run
        done += 1
    return out + b"\0\0\0\0\0\0\0\1"


# TIFF: photometric interpretation, bits, extra samples, sample format

KINDS = [
    *[(photometric, [bits], [], 1) for photometric in (0, 1, 3) for bits in (1, 2, 4, 8)],
    *[(0, [16], [], 1), (1, [16], [], 1), (1, [16], [], 2), (1, [12], [], 1), (1, [8], [], 2)],
    *[(1, [32], [], 1), (1, [32], [], 2), (1, [32], [], 3), (0, [32], [], 3)],
    *[(1, [8, 8], [0], 1), (1, [8, 8], [2], 1), (3, [8, 8], [0], 1), (3, [8, 8], [2], 1)],
    *[(2, [8] * (3 + len(extra)), extra, 1) for extra in ([], [], [0], [1], [2], [0, 0], [1, 0], [2, 0, 0])],
    *[(2, [16] * (3 + len(extra)), extra, 1) for extra in ([], [0], [1], [2])],
    *[(2, [8] * 4, [], 1), (2, [16] * 4, [], 1), (5, [8] * 4, [], 1), (5, [8] * 5, [0], 1), (5, [16] * 4, [], 1)],
]
SHORT, LONG = 3, 4


def pack_bits(rng: random.Random, data: bytes) -> bytes:
    out, at = b"", 0
    while at < len(data):
        count = rng.randint(1, min(128, len(data) - at))
        if count > 1 and data[at : at + count] == data[at : at + 1] * count:
            out += bytes([257 - count, data[at]])
        else:
            out += bytes([count - 1]) + data[at : at + count]
        at += count
    return out


def plain_lzw(data: bytes) -> bytes:
    """Without strings: the table is cleared before codes would grow."""
    codes = [code for at in range(0, len(data), 200) for code in (256, *data[at : at + 200])] + [257]
    bits = "".join(f"{code:09b}" for code in codes)
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def tiff(rng: random.Random) -> bytes:
    order = rng.choice("<>")
    width, height = sides(rng)
    photometric, bits, extra, sample_format = rng.choice(KINDS)
    compression = rng.choice([1, 1, 5, 8, 32946, 32773])
    planar = 2 if rng.random() < 0.2 else 1
    tiled = rng.random() < 0.25
    high_first = 2 if rng.random() < 0.05 else 1
    predictor = 2 if compression in (5, 8, 32946) and rng.random() < 0.3 else 1
    tile = rng.choice([(16, 16), (32, 16), (16, 32)])
    rows_per_strip = rng.choice([height, height, 1, 2, 8, height + 5, 0xFFFFFFFF])
    bits_per_pixel = bits[0] * (1 if planar == 2 else len(bits))

    def chunk(columns: int, rows: int) -> bytes:
        data = content(rng, (columns * bits_per_pixel + 7) // 8 * rows)
        if compression == 5:
            return plain_lzw(data)
        if compression == 32773:
            return pack_bits(rng, data)
        return zlib.compress(data) if compression in (8, 32946) else data

    chunks = []
    for _ in range(len(bits) if planar == 2 else 1):
        if tiled:
            chunks += [chunk(*tile) for _ in range(-(-width // tile[0]) * -(-height // tile[1]))]
        else:
            step = min(rows_per_strip, height)
            chunks += [chunk(width, min(step, height - top)) for top in range(0, height, step)]
    offsets = [8 + sum(map(len, chunks[:index])) for index in range(len(chunks))]
    lengths = [len(data) for data in chunks]
    tags = {256: (SHORT, [width]), 257: (LONG, [height]), 258: (SHORT, bits), 259: (SHORT, [compression])}
    tags |= {262: (SHORT, [photometric]), 266: (SHORT, [high_first]), 277: (SHORT, [len(bits)])}
    tags |= {284: (SHORT, [planar]), 317: (SHORT, [predictor]), 339: (SHORT, [sample_format] * len(bits))}
    if tiled:
        tags |= {322: (SHORT, [tile[0]]), 323: (SHORT, [tile[1]]), 324: (LONG, offsets), 325: (LONG, lengths)}
    else:
        tags |= {273: (LONG, offsets), 278: (LONG, [rows_per_strip]), 279: (LONG, lengths)}
    if extra:
        tags[338] = (SHORT, extra)
    if photometric == 3:
        tags[320] = (SHORT, [rng.randrange(65536) for _ in range(3 << bits[0])])
    if rng.random() < 0.3:
        tags[274] = (SHORT, [rng.randint(0, 9)])
    for tag in rng.sample([258, 259, 262, 266, 278, 279, 284, 317, 339], 1):
        if rng.random() < 0.3:
            tags.pop(tag, None)
    return assemble_tiff(rng, order, b"".join(chunks), sorted(tags.items()))


def assemble_tiff(rng: random.Random, order: str, data: bytes, tags: list) -> bytes:
    if rng.random() < 0.03:
        # A second entry of a tag, with a value beyond the end.
        tags.insert(rng.randrange(1, len(tags)), (tags[0][0], (5, [0x7FFFFFFF])))
    data += b"\0" * (len(data) % 2)
    at = 8 + len(data)
    values_at = at + 2 + 12 * len(tags) + 4
    directory, values = struct.pack(order + "H", len(tags)), b""
    for tag, (kind, numbers) in tags:
        stored = b"".join(struct.pack(order + ("H" if kind == SHORT else "I"), number) for number in numbers)
        directory += struct.pack(order + "HHI", tag, kind, len(numbers))
        if kind == 5 or len(stored) <= 4:
            directory += stored.ljust(4, b"\0")
        else:
            directory += struct.pack(order + "I", values_at + len(values))
            values += stored
    magic = {"<": b"II\x2a\0", ">": b"MM\0\x2a"}[order]
    if rng.random() < 0.03:
        magic = magic[:2] + magic[3:] + magic[2:3]
    return magic + struct.pack(order + "I", at) + data + directory + bytes(4) + values


# GIF


def gif_palette(rng: random.Random, bits: int) -> bytes:
    count = 2 << bits
    return b"".join(bytes([grey] * 3) for grey in range(count)) if rng.random() < 0.3 else rng.randbytes(count * 3)


def gif(rng: random.Random) -> bytes:
    """Codes without strings; frames that are not their canvas, and palettes of all kinds."""
    width, height = sides(rng)
    bits, has_global, has_local = rng.randrange(8), rng.random() < 0.8, rng.random() < 0.4
    out = b"GIF89a" + u16(width) + u16(height) + bytes([128 * has_global | bits, rng.choice([0, 1, 255]), 0])
    out += gif_palette(rng, bits) if has_global else b""
    if rng.random() < 0.5:
        out += b"!\xf9\x04" + bytes([rng.choice([0, 1, 9]), 4, 0, rng.choice([0, 1, 5, 255]), 0])
    if rng.random() < 0.2:
        out += b"!\xfe\x05hello\0"
    left, top = (0, 0) if rng.random() < 0.6 else (rng.choice([0, 1, 5]), rng.choice([0, 1, 5]))
    frame_width, frame_height = (width, height) if rng.random() < 0.6 else sides(rng)
    flags = 128 * has_local | 64 * (rng.random() < 0.3) | bits
    out += b"," + u16(left) + u16(top) + u16(frame_width) + u16(frame_height) + bytes([flags])
    out += gif_palette(rng, bits) if has_local else b""
    code_bits = rng.choice([2, 3, 5, 7, 8])
    clear = 1 << code_bits
    every = clear - 2
    pixels = [value & (clear - 1) for value in content(rng, frame_width * frame_height)]
    codes = [code for at in range(0, len(pixels), every) for code in (clear, *pixels[at : at + every])] + [clear + 1]
    number = sum(code << (index * (code_bits + 1)) for index, code in enumerate(codes))
    packed = number.to_bytes((len(codes) * (code_bits + 1) + 7) // 8, "little")
    step = rng.choice([255, 100, 3])
    blocks = [packed[at : at + step] for at in range(0, len(packed), step)]
    return out + bytes([code_bits]) + b"".join(bytes([len(block)]) + block for block in blocks) + b"\0;"


# Orientation


def turned(rng: random.Random) -> bytes:
    """A picture of six colours, and an EXIF block that Pillow may or may not be able to write again."""
    image = Image.frombytes("RGB", (2, 3), bytes(range(0, 180, 10)))
    buffer = io.BytesIO()
    image.save(buffer, rng.choice(["JPEG", "PNG", "WEBP"]), exif=block(rng), lossless=True)
    return buffer.getvalue()


WRITERS = {
    "EXIF": turned,
    "BMP": bmp,
    "ICO": ico,
    "PNM": pnm,
    "TGA": tga,
    "QOI": qoi,
    "TIFF": tiff,
    "TIFF ": tiff,
    "GIF": gif,
}


def damage(rng: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    # The directory of a TIFF is behind its data, of which a break right behind the last pixel is forgiven here.
    first = struct.unpack_from("<I" if data[:1] == b"I" else ">I", data, 4)[0] if data[:2] in (b"II", b"MM") else 0
    at = rng.randrange(first, min(len(damaged), first + 64) if rng.random() < 0.5 else len(damaged))
    kind = rng.randrange(6)
    if kind == 0:
        damaged[at] = rng.choice(VALUES)
    elif kind == 1:
        damaged[at] ^= 1 << rng.randrange(8)
    elif kind == 2:
        damaged[at : at + 2] = struct.pack(rng.choice("<>") + "H", rng.choice(WORDS))
    elif kind == 3:
        damaged[at:at] = rng.randbytes(rng.randint(1, 4))
    elif kind == 4:
        del damaged[at : at + rng.randint(1, 4)]
    else:
        del damaged[-rng.randint(1, 20) :]
    return bytes(damaged)


def main() -> None:
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(seed)
    for index in range(count):
        name = rng.choice([*WRITERS, "TIFF"])
        data = WRITERS[name](rng)
        for kind, file in [("whole", data), ("damaged", damage(rng, data)), ("damaged", damage(rng, data))]:
            if file:
                line = {"name": f"{seed}/{index} {name} {kind}", "file": base64.b64encode(file).decode()}
                print(json.dumps(line | describe(file)))


if __name__ == "__main__":
    main()
