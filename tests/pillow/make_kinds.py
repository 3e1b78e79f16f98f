"""Writes tests/data/kinds.json: small files of kinds that were once decoded otherwise, and what vLLM makes of them.

Needs pillow==13.0.0.
"""

import base64
import json
import struct
import zlib
from pathlib import Path

from reference import describe
from variants import u16, u32

SHORT, LONG = 3, 4
PIXEL_BYTES = bytes([0, 255, 1, 2, 255, 254, 0, 200])


def bitmap(bits: int, compression: int, colours: bytes, pixels: bytes, width: int, height: int) -> bytes:
    entries = len(colours) // 4 if bits <= 8 else 0
    header = u32(40) + u32(width) + u32(height) + u16(1) + u16(bits) + u32(compression)
    return header + bytes(12) + u32(entries) + u32(0) + colours + pixels


def icon(picture: bytes) -> bytes:
    return b"\0\0\1\0\1\0" + bytes([1, 1, 0, 0]) + u16(1) + u16(32) + u32(len(picture)) + u32(22) + picture


def tiff(order: str, data: bytes, tags: dict, magic: bytes = b"", extra: bytes = b"", without: tuple = ()) -> bytes:
    """`extra` is one more entry, behind the first."""
    standard = {"<": b"II\x2a\0", ">": b"MM\0\x2a"}[order]
    tags = {259: (SHORT, [1]), 273: (LONG, [8]), 277: (SHORT, [1]), 279: (LONG, [len(data)])} | tags
    tags = {tag: value for tag, value in tags.items() if tag not in without}
    data += b"\0" * (len(data) % 2)
    at = 8 + len(data)
    count = len(tags) + bool(extra)
    directory, values = [], b""
    for tag, (kind, numbers) in sorted(tags.items()):
        stored = b"".join(struct.pack(order + ("H" if kind == SHORT else "I"), number) for number in numbers)
        if len(stored) > 4:
            place = at + 2 + 12 * count + 4 + len(values)
            values += stored
            stored = struct.pack(order + "I", place)
        directory.append(struct.pack(order + "HHI", tag, kind, len(numbers)) + stored.ljust(4, b"\0"))
    entries = directory[0] + extra + b"".join(directory[1:])
    head = (magic or standard) + struct.pack(order + "I", at)
    return head + data + struct.pack(order + "H", count) + entries + bytes(4) + values


def sized(width: int, height: int, bits: list, photometric: int = 1, **more: tuple) -> dict:
    tags = {256: (SHORT, [width]), 257: (SHORT, [height]), 258: (SHORT, bits), 262: (SHORT, [photometric])}
    names = {
        "compression": 259,
        "order": 266,
        "samples": 277,
        "rows": 278,
        "planar": 284,
        "palette": 320,
        "format": 339,
    }
    return tags | {names[name]: value for name, value in more.items()}


def literal(data: bytes) -> bytes:
    """PackBits without runs."""
    return bytes([len(data) - 1]) + data


def webp_with_header(length: int) -> bytes:
    """One pixel behind a header of this length, of which ten bytes mean something."""
    pixel = bytes.fromhex("2f000000000750e42ad4a3ff8188e87f00")
    chunks = b"WEBPVP8X" + u32(length) + bytes(length) + b"VP8L" + u32(len(pixel)) + pixel + b"\0"
    return b"RIFF" + u32(len(chunks)) + chunks


def kinds() -> dict:
    packed = (SHORT, [32773])
    black_and_white = b"\0\0\0\0\xff\xff\xff\0"
    greys = (SHORT, list(range(0, 12000, 1000)))
    fraction_beyond_the_end = struct.pack(">HHII", 256, 5, 1, 1 << 24)
    strips = {273: (LONG, [8, 16, 24, 32]), 279: (LONG, [9, 9, 9, 9])}
    planes = b"".join(literal(PIXEL_BYTES[at:] + PIXEL_BYTES[:at]) for at in (0, 1, 5, 3))
    strips[273] = (LONG, [8, 17, 26, 35])
    return {
        "bmp_runs_of_two_greys": bitmap(8, 1, black_and_white, b"\0\6\0\1\2\x7f\x80\xff", 6, 1),
        "bmp_runs_of_single_bits": bitmap(1, 1, b"\1\2\3\0\4\5\6\0", b"\0\3\0\1\2\0", 3, 1),
        "ico_of_bit_fields_with_alpha": icon(bitmap(32, 3, bytes(12), b"\x10\x60\xa0\x40" + bytes(4), 1, 2)),
        "tiff_signed_16_big_endian": tiff(
            ">", literal(PIXEL_BYTES), sized(4, 1, [16], compression=packed, format=(SHORT, [2]))
        ),
        "tiff_signed_32_big_endian": tiff(
            ">", literal(b"\0\0\0\7\7\0\0\0"), sized(2, 1, [32], compression=packed, format=(SHORT, [2]))
        ),
        "tiff_float_big_endian": tiff(
            ">",
            literal(struct.pack(">f", 7) + struct.pack("<f", 7)),
            sized(2, 1, [32], compression=packed, format=(SHORT, [3])),
        ),
        "tiff_one_plane_inverted": tiff("<", b"\1\2\3", sized(3, 1, [8], 0, planar=(SHORT, [2]))),
        "tiff_one_plane_reversed": tiff("<", b"\1\2\3", sized(3, 1, [8], order=(SHORT, [2]), planar=(SHORT, [2]))),
        "tiff_planes_with_alpha": tiff(
            "<", planes, sized(8, 1, [8] * 4, 2, compression=packed, samples=(SHORT, [4]), planar=(SHORT, [2])) | strips
        ),
        "tiff_improper_header": tiff(
            ">", zlib.compress(b"\1\2\3"), sized(3, 1, [8], compression=(SHORT, [8])), magic=b"MM\x2a\0"
        ),
        "tiff_second_width_beyond_the_end": tiff(">", b"\1\2\3", sized(3, 1, [8]), extra=fraction_beyond_the_end),
        "tiff_reversed_indices": tiff("<", b"\x1b", sized(4, 1, [2], 3, order=(SHORT, [2]), palette=greys)),
        "tiff_strip_of_gigabytes": tiff(
            "<", literal(b"\1\2\3"), sized(3, 1, [8], compression=packed, rows=(LONG, [0xFFFFFEFF]))
        ),
        "tiff_higher_strips": tiff(
            "<", b"\1\2\3\4\5\6", sized(3, 1, [8], rows=(LONG, [2])) | {273: (LONG, [11, 8]), 279: (LONG, [3, 3])}
        ),
        "gif_loop_without_a_count": b"GIF89a\1\0\1\0\0\0\0!\xff\x0bNETSCAPE2.0\0\4,,,,\0"
        + b",\0\0\0\0\1\0\1\0\0\2\2\x44\1\0;",
        "webp_usual_header": webp_with_header(10),
        "webp_longer_header": webp_with_header(12),
        "tiff_tile_rows_of_broken_bytes": tiff(
            "<",
            bytes(at * 37 % 256 for at in range(64)),
            sized(1, 4, [2]) | {322: (SHORT, [17]), 323: (SHORT, [4]), 324: (LONG, [8]), 325: (LONG, [64])},
            without=(273, 279),
        ),
        "ppm_numbers_as_python_has_them": b"P2 2 1 1_0\n-0 1_0\n",
        "ppm_junk_in_the_block_of_the_last_bit": b"P1 2 1\n01 x",
        "ppm_too_many_digits": b"P5 00000000001 1 255 a",
    }


def main() -> None:
    expected = {name: {"file": base64.b64encode(file).decode()} | describe(file) for name, file in kinds().items()}
    path = Path(__file__).parent.parent / "data" / "kinds.json"
    path.write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
