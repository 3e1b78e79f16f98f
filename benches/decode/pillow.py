"""Decodes the file of each line of standard input as vLLM does, with Pillow, and prints the nanoseconds it took."""

import io
import pathlib
import sys
import time

from PIL import Image, ImageOps

for line in sys.stdin:
    data = pathlib.Path(line.rstrip("\n")).read_bytes()
    start = time.perf_counter_ns()
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(image, mask=image.getchannel("A"))
    else:
        image.convert("RGB")
    print(time.perf_counter_ns() - start, flush=True)
