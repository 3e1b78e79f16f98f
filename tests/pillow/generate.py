"""Makes random images, whole and damaged, and says what vLLM makes of each: a JSON line an image on standard output.

Usage: generate.py SEED COUNT. For each of COUNT images, the file that Pillow writes, two damaged ones, and five PNGs
that Pillow would not write. Needs pillow==13.0.0 and numpy.
"""

import base64
import io
import json
import random
import sys

import numpy as np
from PIL import Image, PngImagePlugin

import png_streams
from reference import describe

SIDES = [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100]
FORMATS = {
    "JPEG": ["RGB", "L", "CMYK"],
    "PNG": ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"],
    "WEBP": ["RGB", "RGBA"],
    "GIF": ["P", "L"],
    "BMP": ["1", "L", "P", "RGB", "RGBA"],
    "DIB": ["1", "L", "P", "RGB", "RGBA"],
    "TIFF": ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F", "I"],
    "ICO": ["RGBA", "RGB", "P"],
    "PPM": ["1", "L", "RGB", "I"],
    "TGA": ["1", "L", "LA", "P", "RGB", "RGBA"],
    "QOI": ["RGB", "RGBA"],
}


def pixels(rng: random.Random, mode: str, size: tuple[int, int]) -> Image.Image:
    """Noise, ramps or large areas."""
    state = np.random.default_rng(rng.getrandbits(32))
    width, height = size
    kind = rng.choice(["noise", "ramp", "areas"])

    def plane() -> np.ndarray:
        if kind == "noise":
            return state.integers(0, 256, (height, width))
        y, x = np.mgrid[0:height, 0:width]
        ramp = x * rng.randint(0, 9) + y * rng.randint(0, 9) + rng.randint(0, 255)
        return ramp % 256 if kind == "ramp" else (ramp // 32 * 85) % 256

    if mode == "I;16":
        return Image.fromarray((plane() * rng.choice([1, 2, 257])).astype("uint16"))
    if mode == "I":
        return Image.fromarray((plane() * rng.choice([1, 2, 257])).astype("int32"))
    if mode == "F":
        return Image.fromarray((plane() * rng.choice([0.5, 1.25, -1.0])).astype("float32"))
    if mode == "1":
        return Image.fromarray(plane().astype("uint8")).convert("1")
    if mode == "P":
        colours = rng.choice([2, 4, 16, 100, 256])
        rgb = Image.fromarray(np.stack([plane() for _ in range(3)], -1).astype("uint8"))
        return rgb.quantize(colours)
    bands = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}[mode]
    array = np.stack([plane() for _ in range(bands)], -1).astype("uint8")
    return Image.fromarray(array[..., 0] if bands == 1 else array, mode)


def exif(rng: random.Random) -> bytes:
    block = Image.Exif()
    block[274] = rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 8, 6, 0, 9])
    if rng.random() < 0.5:
        block[271] = "a maker of cameras"
    return block.tobytes()


def options(rng: random.Random, name: str, mode: str, image: Image.Image) -> dict:
    chosen: dict = {}
    if name in ("JPEG", "PNG", "WEBP", "TIFF") and rng.random() < 0.4:
        chosen["exif"] = exif(rng)
    if name == "JPEG":
        chosen["quality"] = rng.choice([1, 10, 50, 75, 90, 95, 100])
        chosen["progressive"] = rng.random() < 0.3
        chosen["optimize"] = rng.random() < 0.3
        if mode == "RGB":
            chosen["subsampling"] = rng.choice([0, 1, 2])
            chosen["keep_rgb"] = rng.random() < 0.1
        if rng.random() < 0.3:
            chosen["restart_marker_blocks"] = rng.randint(1, 9)
    if name == "PNG":
        if mode == "P":
            chosen["bits"] = rng.choice([bits for bits in (1, 2, 4, 8) if 2**bits >= len(image.getpalette()) // 3])
            if rng.random() < 0.5:
                chosen["transparency"] = rng.choice([0, 1, bytes(rng.randbytes(rng.randint(1, 3)))])
        if mode in ("1", "L") and rng.random() < 0.4:
            chosen["transparency"] = rng.choice([0, 1, 128, 255])
        if mode == "RGB" and rng.random() < 0.4:
            chosen["transparency"] = image.getpixel((0, 0))
        chosen["compress_level"] = rng.choice([0, 1, 6, 9])
        if rng.random() < 0.3:
            info = PngImagePlugin.PngInfo()
            info.add_text("Comment", "words " * rng.randint(1, 50), zip=rng.random() < 0.5)
            if rng.random() < 0.5:
                xmp = f'<x tiff:Orientation="{rng.randint(0, 9)}"/>'
                info.add_itxt("XML:com.adobe.xmp", xmp, zip=rng.random() < 0.5)
            chosen["pnginfo"] = info
    if name == "WEBP":
        chosen["lossless"] = rng.random() < 0.4
        chosen["quality"] = rng.choice([0, 30, 80, 100])
        chosen["exact"] = rng.random() < 0.5
    if name == "GIF":
        chosen["interlace"] = rng.choice([0, 1])
        if rng.random() < 0.5:
            chosen["transparency"] = rng.choice([0, 1])
    if name in ("PNG", "WEBP", "GIF") and rng.random() < 0.15:
        chosen["save_all"] = True
        chosen["append_images"] = [image.transpose(Image.Transpose.ROTATE_180)]
        chosen["duration"] = 40
    if name == "TIFF":
        chosen["compression"] = rng.choice([None, None, "tiff_lzw", "tiff_adobe_deflate", "packbits"])
        predicts = chosen["compression"] in ("tiff_lzw", "tiff_adobe_deflate") and mode in ("L", "RGB", "RGBA")
        if predicts and rng.random() < 0.5:
            chosen["tiffinfo"] = {317: 2}
    if name == "ICO":
        chosen["bitmap_format"] = rng.choice(["bmp", "png"])
        chosen["sizes"] = [(rng.choice([1, 3, 8, 16]),) * 2 for _ in range(rng.randint(1, 2))]
    if name == "TGA":
        chosen["compression"] = rng.choice([None, "tga_rle"]) if mode != "1" else None
        chosen["orientation"] = rng.choice([-1, 1])
    return chosen


def damage(rng: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        at = rng.randrange(len(damaged)) if damaged else 0
        kind = rng.choice(["set", "flip", "flip", "flip", "remove", "insert", "cut"])
        if not damaged:
            break
        if kind == "set":
            damaged[at] = rng.randrange(256)
        elif kind == "flip":
            damaged[at] ^= 1 << rng.randrange(8)
        elif kind == "remove":
            del damaged[at : at + rng.randint(1, 8)]
        elif kind == "insert":
            damaged[at:at] = rng.randbytes(rng.randint(1, 8))
        elif rng.random() < 0.5:
            del damaged[at:]
    return bytes(damaged)


def main() -> None:
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(seed)
    made = 0
    while made < count:
        name = rng.choice(list(FORMATS))
        mode = rng.choice(FORMATS[name])
        image = pixels(rng, mode, (rng.choice(SIDES), rng.choice(SIDES)))
        buffer = io.BytesIO()
        chosen = options(rng, name, mode, image)
        try:
            image.save(buffer, name, **chosen)
        except Exception as error:
            print(f"{name} {mode} {chosen}: {error}", file=sys.stderr)
            continue
        data = buffer.getvalue()
        files = [(f"{name} {mode} whole", data)]
        files += [(f"{name} {mode} damaged", damage(rng, data)) for _ in range(2)]
        files += [(f"PNG stream {number}", png_streams.picture(rng)) for number in range(5)]
        for kind, file in files:
            if not file:
                continue
            line = {"name": f"{seed}/{made} {kind}", "file": base64.b64encode(file).decode()}
            print(json.dumps(line | describe(file)))
        made += 1


if __name__ == "__main__":
    main()
