"""What the model says of an image is the same, token by token, whether vLLM decoded it or the gateway did."""

import io

import openai
import pytest
from PIL import Image

import chat
from harness import MODEL
from pictures import MIME, PHOTO, data_uri, drawing, encode, image, text

QUESTION = text("Describe this image in detail.")


def jpeg_turned_on_its_side() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by 90 degrees clockwise
    return encode(drawing(3), "JPEG", quality=90, exif=exif)


def png_with_alpha() -> bytes:
    picture = drawing(4).convert("RGBA")
    picture.putalpha(Image.linear_gradient("L").resize(picture.size))
    return encode(picture, "PNG")


ENCODED = {
    "photograph.jpg": ("JPEG", lambda: PHOTO),
    "turned.jpg": ("JPEG", jpeg_turned_on_its_side),
    "grey.jpg": ("JPEG", lambda: encode(drawing(5).convert("L"), "JPEG")),
    "drawing.png": ("PNG", lambda: encode(drawing(6), "PNG")),
    "alpha.png": ("PNG", png_with_alpha),
    "palette.png": ("PNG", lambda: encode(drawing(7).quantize(64), "PNG")),
    "lossy.webp": ("WEBP", lambda: encode(drawing(8), "WEBP", quality=80)),
    "lossless.webp": ("WEBP", lambda: encode(drawing(9), "WEBP", lossless=True)),
}


def directly(vllm, content: bytes, kind: str) -> list[int]:
    """The tokens of a worker that decodes the file itself. It knows the image by a hash of the file, and the gateway's
    by a hash of its pixels: neither can answer from a cache that the other filled."""
    with vllm.traced() as seen:
        tokens = chat.tokens(vllm.url, [image(data_uri(content, kind)), QUESTION])
    # The witness works: what the worker opens, it writes down.
    assert seen["PIL.Image.open"] == 1
    return tokens


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("way", ["http", "data"])
@pytest.mark.parametrize("form", ["plain", "streamed"])
def test_tokens_equal_those_of_a_direct_request(vllm, gateway, files, name, way, form):
    kind, make = ENCODED[name]
    content = make()
    url = files.put(f"/{form}/{name}", content, MIME[kind]) if way == "http" else data_uri(content, kind)
    ask = chat.tokens if form == "plain" else chat.streamed_tokens

    with vllm.traced() as seen:
        through_gateway = ask(gateway.url, [image(url), QUESTION])

    assert not seen, f"the worker opened or fetched something: {seen}"
    assert through_gateway == directly(vllm, content, kind)


def test_a_request_without_an_image_passes_as_it_is(vllm, gateway):
    words = [text("The quick brown fox jumps over the lazy dog.")]
    assert chat.tokens(gateway.url, words) == chat.tokens(vllm.url, words)


def test_another_image_gives_other_tokens(gateway):
    one, other = (data_uri(encode(drawing(n), "PNG"), "PNG") for n in (20, 21))
    assert chat.tokens(gateway.url, [image(one), QUESTION]) != chat.tokens(gateway.url, [image(other), QUESTION])


def test_two_images_keep_their_order(vllm, gateway, files):
    first, second = encode(drawing(22), "PNG"), encode(drawing(23), "WEBP", lossless=True)

    def parts(one: str, other: str) -> list[dict]:
        return [text("Compare"), image(one), text("with"), image(other), QUESTION]

    there = chat.tokens(vllm.url, parts(data_uri(first, "PNG"), data_uri(second, "WEBP")))
    back = chat.tokens(vllm.url, parts(data_uri(second, "WEBP"), data_uri(first, "PNG")))
    assert there != back

    first_url = files.put("/two/first.png", first, "image/png")
    with vllm.traced() as seen:
        assert chat.tokens(gateway.url, parts(first_url, data_uri(second, "WEBP"))) == there
        assert chat.tokens(gateway.url, parts(data_uri(second, "WEBP"), first_url)) == back
    assert not seen


def test_the_same_image_twice_in_one_request(vllm, gateway):
    uri = data_uri(encode(drawing(24), "PNG"), "PNG")
    parts = [image(uri), text("and"), image(uri), QUESTION]
    with vllm.traced() as seen:
        through_gateway = chat.tokens(gateway.url, parts)
    assert not seen
    assert through_gateway == chat.tokens(vllm.url, parts)


def test_the_openai_client(vllm, gateway, files):
    url = files.put("/openai/photograph.jpg", PHOTO, "image/jpeg")
    request = {
        "model": MODEL,
        "messages": [{"role": "user", "content": [image(url), QUESTION]}],
        "temperature": 0,
        "max_tokens": chat.ANSWER_TOKENS,
        "extra_body": {"ignore_eos": True, "return_token_ids": True},
    }
    expected = directly(vllm, PHOTO, "JPEG")

    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client, vllm.traced() as seen:
        assert [model.id for model in client.models.list()] == [MODEL]

        plain = client.chat.completions.create(**request)
        assert plain.choices[0].token_ids == expected
        assert plain.usage.completion_tokens == chat.ANSWER_TOKENS

        streamed: list[int] = []
        said = io.StringIO()
        for chunk in client.chat.completions.create(**request, stream=True):
            for choice in chunk.choices:
                streamed += getattr(choice, "token_ids", None) or []
                said.write(choice.delta.content or "")
        assert streamed == expected
        assert said.getvalue() == plain.choices[0].message.content
    assert not seen


def test_the_openai_client_sees_a_refusal_as_its_own_error(gateway, files):
    url = files.put("/openai/broken.jpg", PHOTO[:1000], "image/jpeg")
    messages = [{"role": "user", "content": [QUESTION, image(url)]}]
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
    with client, pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
    assert refused.value.param == "messages[0].content[1].image_url"
    assert refused.value.code
