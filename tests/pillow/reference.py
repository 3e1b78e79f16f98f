"""What vLLM makes of an image, written anew on plain Pillow 13.0.0."""

import contextlib
import hashlib
import io
import warnings

from PIL import Image, ImageOps

Image.MAX_IMAGE_PIXELS = 178_956_970
# Formats that vLLM does not let Pillow try; the last two are there only where olefile is installed.
DENIED = {"EPS", "WMF", "BUFR", "GRIB", "HDF5", "MPEG", "FPX", "MIC"}


def open_image(data: bytes) -> Image.Image:
    Image.init()
    # In alphabetical order, as vLLM lists them: some files look like two formats.
    return Image.open(io.BytesIO(data), formats=sorted(name for name in Image.ID if name not in DENIED))


def reference(data: bytes) -> Image.Image:
    """The picture: first frame, upright by EXIF or XMP, transparency on white, RGB.

    Raises for broken files, also for those that vLLM takes for a partial picture by accident.
    """
    open_image(data).load()
    image = open_image(data)
    if image.width * image.height > Image.MAX_IMAGE_PIXELS:
        raise ValueError("too many pixels")
    with contextlib.suppress(Exception):
        image = ImageOps.exif_transpose(image)
    image.load()
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(image, mask=image.split()[3])
        return white
    return image.convert("RGB")


def describe(data: bytes) -> dict:
    """Status, size and hash of the pixels, as in the expectations of the tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = reference(data)
        except Exception as error:
            return {"status": "client_error", "msg": f"{type(error).__name__}: {error}"}
    digest = hashlib.sha256(image.tobytes()).hexdigest()
    return {"status": "ok", "width": image.width, "height": image.height, "rgb_sha256": digest}
