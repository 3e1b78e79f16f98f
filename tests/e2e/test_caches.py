"""The name that the gateway gives to pixels is what vLLM's caches know an image by."""

import io

from PIL import Image

import chat
from pictures import data_uri, drawing, encode, image, text

QUESTION = text("What is in the picture?")
BLOCK = 32


def difference(before: dict, after: dict, name: str) -> float:
    return after.get(name, 0.0) - before.get(name, 0.0)


def test_the_same_image_again_hits_the_prefix_cache(vllm, gateway, files):
    content = encode(drawing(40), "JPEG", quality=92)
    url = files.put("/caches/drawing.jpg", content, "image/jpeg")
    first = chat.post(gateway.url, [image(url), QUESTION]).json()

    before = vllm.metrics()
    again = chat.post(gateway.url, [image(url), QUESTION]).json()
    after = vllm.metrics()

    assert again["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]
    prompt = again["usage"]["prompt_tokens"]
    # All full blocks of the prompt but, at most, the last.
    assert difference(before, after, "vllm:prefix_cache_hits_total") >= (prompt // BLOCK - 1) * BLOCK
    assert difference(before, after, "vllm:mm_cache_hits_total") == 1


def test_the_same_pixels_in_another_file_hit_it_too(vllm, gateway):
    """vLLM by itself knows an image by its encoded bytes, and would compute all of it again."""
    jpeg = encode(drawing(41), "JPEG", quality=92)
    png = encode(Image.open(io.BytesIO(jpeg)), "PNG")
    first = chat.tokens(gateway.url, [image(data_uri(jpeg, "JPEG")), QUESTION])

    before = vllm.metrics()
    with vllm.traced() as seen:
        second = chat.tokens(gateway.url, [image(data_uri(png, "PNG")), QUESTION])
    after = vllm.metrics()

    assert not seen
    assert second == first
    assert difference(before, after, "vllm:prefix_cache_hits_total") > 0
    assert difference(before, after, "vllm:mm_cache_hits_total") == 1


def test_other_pixels_hit_nothing_of_it(vllm, gateway):
    chat.tokens(gateway.url, [image(data_uri(encode(drawing(42), "PNG"), "PNG")), QUESTION])
    before = vllm.metrics()
    # The same shape, so the same prompt tokens: only the image's name tells the two apart.
    chat.tokens(gateway.url, [image(data_uri(encode(drawing(43), "PNG"), "PNG")), QUESTION])
    after = vllm.metrics()
    assert difference(before, after, "vllm:prefix_cache_hits_total") == 0
    assert difference(before, after, "vllm:mm_cache_hits_total") == 0


def test_one_url_is_fetched_and_decoded_once(gateway, files):
    url = files.put("/caches/once.png", encode(drawing(44), "PNG"), "image/png")
    before = gateway.metrics()
    for _ in range(3):
        chat.tokens(gateway.url, [image(url), QUESTION])
    after = gateway.metrics()
    assert difference(before, after, "mediagate_decode_seconds_count") == 1
    fetches = [fetch for fetch in files.fetches if fetch.path == "/caches/once.png"]
    assert fetches
    assert not any("vllm" in fetch.user_agent.lower() for fetch in fetches)
