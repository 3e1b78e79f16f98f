"""Writes tests/data/images and, in expected.json, what vLLM makes of each. Needs pillow==13.0.0 and numpy."""

import json
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from reference import describe

FOLDER = Path(__file__).parent.parent / "data" / "images"


def pattern(height: int, width: int, channels: int) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width]
    planes = [(x * 9 + y * 3) % 256, (x * 2 + y * 11) % 256, (x * 5 ^ y * 7) % 256, (x * 13 + y) % 256]
    noise = np.random.default_rng(7).integers(0, 12, (height, width, channels))
    return (np.stack(planes[:channels], -1) + noise).clip(0, 255).astype("uint8")


def exif(orientation: int) -> bytes:
    block = Image.Exif()
    block[274] = orientation
    return block.tobytes()


def interlaced_png(pixels: np.ndarray, colour_type: int) -> bytes:
    """Adam7, which Pillow does not write."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    passes = [(0, 8, 0, 8), (0, 8, 4, 8), (4, 8, 0, 4), (0, 4, 2, 4), (2, 4, 0, 2), (0, 2, 1, 2), (1, 2, 0, 1)]
    rows = b""
    for first_row, row_step, first_column, column_step in passes:
        for row in pixels[first_row::row_step, first_column::column_step]:
            if row.size:
                rows += b"\0" + row.tobytes()
    height, width = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    rgb = Image.fromarray(pattern(23, 37, 3))
    rgba = Image.fromarray(pattern(19, 21, 4), "RGBA")
    grey = Image.fromarray(pattern(17, 15, 3)[..., 0])
    cmyk = Image.fromarray(pattern(16, 18, 4), "CMYK")
    few = rgb.quantize(16)
    more = rgb.quantize(40)
    flipped = rgba.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    deep = Image.fromarray(np.asarray(grey).astype("uint16") * 3)
    files = {
        "baseline_420.jpg": (rgb, {"quality": 80}),
        "baseline_444.jpg": (rgb, {"quality": 90, "subsampling": 0}),
        "progressive.jpg": (rgb, {"quality": 80, "progressive": True}),
        "grey.jpg": (grey, {}),
        "cmyk.jpg": (cmyk, {}),
        "exif_6.jpg": (rgb, {"exif": exif(6)}),
        "rgb.png": (rgb, {}),
        "rgba.png": (rgba, {}),
        "grey.png": (grey, {}),
        "palette.png": (few, {"bits": 4}),
        "palette_alpha.png": (more, {"transparency": bytes(range(0, 200, 5))}),
        "grey16.png": (deep, {}),
        "exif_5.png": (rgb, {"exif": exif(5)}),
        "apng.png": (rgba, {"save_all": True, "append_images": [flipped], "duration": 50}),
        "lossy.webp": (rgb, {"quality": 70}),
        "lossy_alpha.webp": (rgba, {"quality": 70}),
        "lossless.webp": (rgba, {"lossless": True}),
        "animated.webp": (rgba, {"save_all": True, "append_images": [flipped], "duration": 50}),
        "exif_8.webp": (rgb, {"exif": exif(8)}),
        "palette.gif": (more, {}),
        "transparent.gif": (more, {"transparency": 3}),
        "animated.gif": (few, {"save_all": True, "append_images": [more], "duration": 50}),
        "rgb24.bmp": (rgb, {}),
        "palette8.bmp": (more, {}),
        "rgba32.bmp": (rgba, {}),
        "bits.bmp": (grey.convert("1"), {}),
        "palette8.dib": (more, {}),
        "rgb_raw.tif": (rgb, {}),
        "rgb_lzw.tif": (rgb, {"compression": "tiff_lzw"}),
        "rgb_deflate.tif": (rgb, {"compression": "tiff_adobe_deflate"}),
        "rgb_packbits.tif": (rgb, {"compression": "packbits"}),
        "grey.tif": (grey, {}),
        "group4.tif": (grey.convert("1"), {"compression": "group4"}),
        "rgba.tif": (rgba, {}),
        "icon.ico": (rgba, {"sizes": [(16, 16)], "bitmap_format": "bmp"}),
        "icon_png.ico": (rgba, {"sizes": [(16, 16)]}),
        "rgb.ppm": (rgb, {}),
        "grey.pgm": (grey, {}),
        "bits.pbm": (grey.convert("1"), {}),
        "rle.tga": (rgba, {"compression": "tga_rle"}),
        "rgb.tga": (rgb, {}),
        "rgba.avif": (rgba, {}),
    }
    for name, (image, options) in files.items():
        image.save(FOLDER / name, **options)
    (FOLDER / "interlaced_rgb.png").write_bytes(interlaced_png(np.asarray(rgb), 2))
    (FOLDER / "interlaced_rgba.png").write_bytes(interlaced_png(np.asarray(rgba), 6))
    expected = {path.name: describe(path.read_bytes()) for path in sorted(FOLDER.iterdir())}
    (FOLDER.parent / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
