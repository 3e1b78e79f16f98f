"""The pictures of the end-to-end tests, and the message parts that hold them."""

import base64
import functools
import io
import random

from PIL import Image, ImageDraw

from harness import REPOSITORY

PHOTO = (REPOSITORY / "tests/data/paris.jpg").read_bytes()
MIME = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}


@functools.cache
def drawing(seed: int, width: int = 448, height: int = 320) -> Image.Image:
    """Coloured boxes on a gradient. Each seed gives another picture, the same one in every run."""
    choose = random.Random(seed)
    picture = Image.merge("RGB", [Image.linear_gradient("L").rotate(90 * i) for i in range(3)]).resize((width, height))
    pen = ImageDraw.Draw(picture)
    for _ in range(12):
        left, top = choose.randrange(width - 16), choose.randrange(height - 16)
        box = (left, top, left + choose.randrange(16, width // 2), top + choose.randrange(16, height // 2))
        pen.rectangle(box, fill=tuple(choose.randrange(256) for _ in range(3)))
    return picture


def encode(picture: Image.Image, kind: str, **options) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def data_uri(content: bytes, kind: str) -> str:
    return f"data:{MIME[kind]};base64,{base64.b64encode(content).decode()}"


def image(url: str) -> dict:
    return {"type": "image_url", "image_url": {"url": url}}


def text(words: str) -> dict:
    return {"type": "text", "text": words}
