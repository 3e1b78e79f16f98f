#!/usr/bin/env python3
"""Makes N photographs that differ in every pixel: aiperf_images.py PICTURE FOLDER N."""

import pathlib
import sys

from PIL import Image, ImageEnhance


def main() -> None:
    source, folder, count = Image.open(sys.argv[1]).convert("RGB"), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    source = source.resize((1280, 960))
    for index in range(count):
        brightness = 0.6 + 0.8 * index / max(count - 1, 1)
        ImageEnhance.Brightness(source).enhance(brightness).save(folder / f"{index}.jpg", quality=88)


main()
