"""Images that the gateway resizes as it decodes: the model says of them, token by token, what it says of full ones."""

import io

import pytest
from PIL import Image

import chat
from harness import nixl_lib_dir
from pictures import PHOTO, data_uri, drawing, encode, image, text

QUESTION = text("Describe this image in detail.")
DEBUG = {"x-mediagate-debug": "1"}


def photograph(width: int, height: int, **options) -> bytes:
    picture = Image.open(io.BytesIO(PHOTO)).convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
    return encode(picture, "JPEG", quality=90, **options)


def on_its_side(width: int, height: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return photograph(width, height, exif=exif)


# Height and width above the processor's limit, or a little above a multiple of 32: either way it would shrink them.
CASES = {
    "photograph": ("JPEG", lambda: photograph(1600, 1200), "1152x864"),
    "on its side": ("JPEG", lambda: on_its_side(1600, 1200), "864x1152"),
    "screenshot": ("PNG", lambda: encode(drawing(70, 1930, 1100), "PNG"), "1344x768"),
    "a few pixels": ("PNG", lambda: encode(drawing(71, 460, 330), "PNG"), "448x320"),
    "one side": ("WEBP", lambda: encode(drawing(72, 460, 320), "WEBP", quality=90), "448x320"),
}


@pytest.fixture(scope="module")
def unresized(vllm, start_gateway):
    flags = ["--nixl-lib-dir", str(nixl_lib_dir()), "--resize", "off"]
    gateway = start_gateway("gateway-unresized", [vllm.url], *flags).ready()
    gateway.wait_until_attached()
    return gateway


@pytest.mark.parametrize("name", CASES)
def test_tokens_are_those_of_the_full_image(vllm, gateway, unresized, name):
    kind, make, size = CASES[name]
    parts = [image(data_uri(make(), kind)), QUESTION]
    before = gateway.metrics()
    with vllm.traced() as seen:
        resized = chat.post(gateway.url, parts, headers=DEBUG)
    after = gateway.metrics()
    assert resized.status_code == 200, resized.text
    assert not seen
    assert f"resize=auto; sizes={size}" in resized.headers["x-mediagate-route"]
    pushed = after["mediagate_pushed_bytes_total"] - before.get("mediagate_pushed_bytes_total", 0)
    width, height = map(int, size.split("x"))
    assert pushed == width * height * 3

    full = chat.post(unresized.url, parts, headers=DEBUG)
    assert "resize=off" in full.headers["x-mediagate-route"]
    tokens = resized.json()["choices"][0]["token_ids"]
    assert tokens == full.json()["choices"][0]["token_ids"]
    # What the worker makes of the file itself, under a name of its own.
    assert tokens == chat.tokens(vllm.url, parts)


def test_what_the_processor_would_enlarge_goes_as_it_is(gateway):
    parts = [image(data_uri(encode(drawing(73, 340, 250), "PNG"), "PNG")), QUESTION]
    answer = chat.post(gateway.url, parts, headers=DEBUG)
    assert "resize=auto; sizes=340x250" in answer.headers["x-mediagate-route"]
    assert answer.json()["choices"][0]["token_ids"]


def test_a_request_that_sets_the_processor_gets_the_full_image(gateway):
    parts = [image(data_uri(encode(drawing(74, 460, 330), "PNG"), "PNG")), QUESTION]
    answer = chat.post(gateway.url, parts, headers=DEBUG, mm_processor_kwargs={"max_pixels": 4_000_000})
    # Whether the worker lets clients do that or not.
    assert "resize=off; sizes=460x330" in answer.headers["x-mediagate-route"]
