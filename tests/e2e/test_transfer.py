"""How pixels get to a worker: pushed over NIXL where both sides have it, inline where one has not."""

import chat
from pictures import MIME, data_uri, drawing, encode, image, text

QUESTION = text("What colour is it?")
DEBUG = {"x-mediagate-debug": "1"}


def test_pixels_are_pushed_over_nixl(vllm, gateway):
    picture = drawing(60)
    before = gateway.metrics()
    with vllm.traced() as seen:
        answer = chat.post(gateway.url, [image(data_uri(encode(picture, "PNG"), "PNG")), QUESTION], headers=DEBUG)
    after = gateway.metrics()

    assert answer.status_code == 200
    assert "transfer=push" in answer.headers["x-mediagate-route"]
    assert "push;dur=" in answer.headers["server-timing"]
    pushed = after["mediagate_pushed_bytes_total"] - before.get("mediagate_pushed_bytes_total", 0)
    assert pushed == picture.width * picture.height * 3
    assert not seen


def test_many_at_once_are_not_mixed_up(vllm, gateway, files):
    """Twelve pictures in flight together through the same landing memory, each with the answer that is its own."""
    from concurrent.futures import ThreadPoolExecutor

    contents = [encode(drawing(100 + n, 256 + 32 * n, 256), "PNG") for n in range(12)]
    urls = [files.put(f"/many/{n}.png", content, MIME["PNG"]) for n, content in enumerate(contents)]
    with vllm.traced() as seen, ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda url: chat.tokens(gateway.url, [image(url), QUESTION]), urls))
    assert not seen
    # Alone, each after the other, directly.
    alone = [chat.tokens(vllm.url, [image(data_uri(content, "PNG")), QUESTION]) for content in contents]
    assert together == alone


def test_without_nixl_the_same_pixels_go_inline(vllm, start_gateway, tmp_path):
    gateway = start_gateway("gateway-inline", [vllm.url], "--nixl-lib-dir", str(tmp_path / "nothing-here")).ready()
    content = encode(drawing(61), "WEBP", quality=80)
    parts = [image(data_uri(content, "WEBP")), QUESTION]

    with vllm.traced() as seen:
        answer = chat.post(gateway.url, parts, headers=DEBUG)
    assert answer.status_code == 200, answer.text
    assert "transfer=inline" in answer.headers["x-mediagate-route"]
    # The worker reads a PPM from the request's own body: nothing to inflate, nothing to fetch.
    assert seen["ImageMediaIO.load_bytes"] == 1
    assert not [what for what in seen if what.startswith("HTTPConnection")]

    assert answer.json()["choices"][0]["token_ids"] == chat.tokens(vllm.url, parts)


def test_pushed_and_inline_pixels_have_one_name(vllm, gateway, start_gateway, tmp_path):
    inline = start_gateway("gateway-inline-2", [vllm.url], "--nixl-lib-dir", str(tmp_path / "nothing-here")).ready()
    parts = [image(data_uri(encode(drawing(62), "PNG"), "PNG")), QUESTION]
    pushed = chat.tokens(gateway.url, parts)
    before = vllm.metrics()
    assert chat.tokens(inline.url, parts) == pushed
    after = vllm.metrics()
    assert after["vllm:mm_cache_hits_total"] - before["vllm:mm_cache_hits_total"] == 1


def test_without_frontend_decoding_the_worker_decodes(vllm, start_gateway):
    gateway = start_gateway("gateway-passthrough", [vllm.url], frontend_decoding=False).ready()
    content = encode(drawing(63), "PNG")
    with vllm.traced() as seen:
        tokens = chat.tokens(gateway.url, [image(data_uri(content, "PNG")), QUESTION])
    assert seen["PIL.Image.open"] == 1
    assert tokens == chat.tokens(vllm.url, [image(data_uri(content, "PNG")), QUESTION])
