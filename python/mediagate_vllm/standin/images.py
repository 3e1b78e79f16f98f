"""Images that are in a request themselves: data: URIs and, if allowed, http URLs, decoded as vLLM would."""

import base64
import binascii
import io
import re
import urllib.request
from urllib.parse import unquote_to_bytes

import numpy as np

MAX_FETCH_BYTES = 256 << 20
_PPM = re.compile(rb"P6(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+255\s")


def encoded_bytes(data_uri: str) -> bytes:
    """The payload of a `data:` URI, or ValueError."""
    head, comma, payload = data_uri[len("data:") :].partition(",")
    if not comma:
        raise ValueError("a data: URI needs a comma")
    if not head.endswith(";base64"):
        return unquote_to_bytes(payload)
    try:
        return base64.b64decode(payload, validate=True)
    except binascii.Error as e:
        raise ValueError(f"the data: URI is not base64: {e}") from None


def fetch(url: str) -> bytes:
    """Blocking, without any protection: only for tests that let the stand-in fetch."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read(MAX_FETCH_BYTES)
    except OSError as e:
        raise ValueError(f"cannot fetch the image: {e}") from None


def decode(encoded: bytes) -> tuple[np.ndarray, int, int]:
    """(flat RGB8 pixels, height, width), or ValueError. Binary PPM needs no Pillow."""
    if (m := _PPM.match(encoded)) is not None:
        width, height = int(m[1]), int(m[2])
        pixels = np.frombuffer(encoded, np.uint8, offset=m.end())
        if height * width == 0 or pixels.size < height * width * 3:
            raise ValueError("the PPM is truncated")
        return pixels[: height * width * 3], height, width
    return _decode_with_pillow(encoded)


def _decode_with_pillow(encoded: bytes) -> tuple[np.ndarray, int, int]:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ValueError("only binary PPM is understood here: Pillow is not installed") from None
    try:
        with Image.open(io.BytesIO(encoded)) as opened:
            image: Image.Image = ImageOps.exif_transpose(opened)
            image.load()
    except Exception as e:  # Pillow's plugins raise whatever they like
        raise ValueError(f"cannot decode the image: {type(e).__name__}") from None
    if image.mode in ("LA", "PA") or (image.mode != "RGB" and "transparency" in image.info):
        image = image.convert("RGBA")
    if image.mode == "RGBA":
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(image, mask=image.getchannel("A"))
        image = white
    pixels = np.asarray(image.convert("RGB"))
    return pixels.reshape(-1), image.height, image.width
