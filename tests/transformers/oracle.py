"""Runs a Hugging Face image processor on a picture and on what the gateway made of it, and says whether it matters.

A request is a line of JSON, {"settings": of the processor, "size": [height, width], "resized": [height, width] or
null}, and the pixels of one or both as RGB8. The answer is a line of JSON: {"size": that the processor chose, or null
if it refused the picture, "difference": null or what differs}.
"""

import json
import sys
from functools import cache

import numpy as np
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

FLOATS_UP_TO_PIXELS = 3_000_000


@cache
def processor(settings: str) -> Qwen2VLImageProcessor:
    return Qwen2VLImageProcessor.from_dict(json.loads(settings))


def read(height: int, width: int) -> np.ndarray:
    data = bytearray(sys.stdin.buffer.read(height * width * 3))
    return np.frombuffer(data, np.uint8).reshape(height, width, 3)


def compare(process, full: np.ndarray, resized: np.ndarray) -> str | None:
    """In each form in which a worker may get pixels."""
    # As a worker runs it that leaves normalizing to the GPU: what is compared then is bytes.
    raw = {"do_rescale": False, "do_normalize": False}
    forms = {
        "a view of a tensor": (lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1), raw),
        "an image": (Image.fromarray, raw),
        "two images": (lambda pixels: [Image.fromarray(pixels)] * 2, raw),
    }
    if full.shape[0] * full.shape[1] <= FLOATS_UP_TO_PIXELS:
        forms["an image, normalized"] = (Image.fromarray, {})
    for name, (make, options) in forms.items():
        if name == "a view of a tensor" and min(*full.shape[:2], *resized.shape[:2]) < 5:
            continue
        of_full, of_resized = (process(make(pixels), return_tensors="pt", **options) for pixels in (full, resized))
        if not torch.equal(of_full["image_grid_thw"], of_resized["image_grid_thw"]):
            return f"the grid of {name}"
        a, b = of_full["pixel_values"], of_resized["pixel_values"]
        if a.dtype != b.dtype or not torch.equal(a, b):
            return f"{int((a != b).sum())} of {a.numel()} values of {name}, by up to {float((a - b).abs().max())}"
    return None


def main() -> None:
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        process = processor(json.dumps(request["settings"]))
        full = read(*request["size"])
        resized = read(*request["resized"]) if request["resized"] else None
        difference = None
        try:
            made = process(Image.fromarray(full), return_tensors="pt", do_rescale=False, do_normalize=False)
            _, rows, columns = made["image_grid_thw"][0].tolist()
            size = [rows * process.patch_size, columns * process.patch_size]
        except ValueError:
            size = None
        if size and resized is not None:
            difference = compare(process, full, resized)
        print(json.dumps({"size": size, "difference": difference}), flush=True)


if __name__ == "__main__":
    main()
