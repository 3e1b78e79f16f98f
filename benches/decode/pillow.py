"""Decodes as vLLM does, with Pillow: `open PATH`, `decode TIMES`, answered with nanoseconds by clock and by thread."""

import io
import pathlib
import sys
import time

from PIL import Image, ImageOps


def decode(data: bytes) -> None:
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(image, mask=image.getchannel("A"))
    else:
        image.convert("RGB")


data = b""
for line in sys.stdin:
    command, argument = line.rstrip("\n").split(" ", 1)
    if command == "open":
        data = pathlib.Path(argument).read_bytes()
        continue
    start, start_of_thread = time.perf_counter_ns(), time.thread_time_ns()
    for _ in range(int(argument)):
        decode(data)
    print(time.perf_counter_ns() - start, time.thread_time_ns() - start_of_thread, flush=True)
