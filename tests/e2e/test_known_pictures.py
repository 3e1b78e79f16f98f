"""A picture that the worker holds processed is named and not sent; where it does not hold it, nobody notices."""

import uuid

import httpx
import pytest

import chat
from harness import MODEL
from pictures import data_uri, drawing, encode, image, text

QUESTION = text("What is it?")
DEBUG = {"x-mediagate-debug": "1"}


def route(gateway, parts: list[dict]) -> tuple[str, list[int]]:
    answer = chat.post(gateway.url, parts, headers=DEBUG)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-mediagate-route"], answer.json()["choices"][0]["token_ids"]


def chat_by_name() -> dict:
    return chat.body([{"type": "image_url", "image_url": None, "uuid": uuid.uuid4().hex}, QUESTION])


def response_by_name() -> dict:
    picture = {"type": "input_image", "image_url": None, "uuid": uuid.uuid4().hex, "detail": "auto"}
    content = [picture, {"type": "input_text", "text": "What is it?"}]
    return {"model": MODEL, "input": [{"role": "user", "content": content}], "store": False}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "by_name"),
    [("/v1/chat/completions", chat_by_name), ("/v1/responses", response_by_name)],
    ids=["chat", "responses"],
)
def test_a_miss_is_answered_with_an_error_before_the_first_byte(vllm, path, by_name, stream):
    """What sending by name rests on, proved for each surface where it is done."""
    answer = httpx.post(vllm.url + path, json=by_name() | {"stream": stream}, timeout=300)
    assert answer.status_code == 400
    assert "Cache miss" in answer.json()["error"]["message"]


def test_a_known_picture_goes_by_name_alone(vllm, gateway):
    parts = [image(data_uri(encode(drawing(200), "PNG"), "PNG")), QUESTION]
    first, tokens = route(gateway, parts)
    assert "transfer=push" in first
    before = gateway.metrics()
    with vllm.traced() as seen:
        again, same = route(gateway, parts)
        assert chat.streamed_tokens(gateway.url, parts) == tokens
    assert "transfer=uuid" in again
    assert same == tokens
    assert not seen
    after = gateway.metrics()
    assert after["mediagate_pushed_bytes_total"] == before["mediagate_pushed_bytes_total"]


def test_known_and_new_pictures_in_one_request(vllm, gateway):
    known, new = (image(data_uri(encode(drawing(n), "PNG"), "PNG")) for n in (201, 202))
    route(gateway, [known, QUESTION])
    mixed, tokens = route(gateway, [known, text("and"), new, QUESTION])
    assert "transfer=uuid+push" in mixed
    assert tokens == chat.tokens(vllm.url, [known, text("and"), new, QUESTION])


@pytest.mark.parametrize("form", ["plain", "streamed"])
def test_a_picture_that_the_worker_lost_is_sent_again_unseen(vllm, gateway, form):
    ask = chat.tokens if form == "plain" else chat.streamed_tokens
    parts = [image(data_uri(encode(drawing(203 if form == "plain" else 204), "PNG"), "PNG")), QUESTION]
    tokens = ask(gateway.url, parts)
    # A route of vLLM's development mode, which the tests' worker runs in.
    assert httpx.post(f"{vllm.url}/reset_mm_cache", timeout=60).status_code == 200
    before = gateway.metrics()
    assert ask(gateway.url, parts) == tokens
    after = gateway.metrics()
    assert after["mediagate_pushed_bytes_total"] > before["mediagate_pushed_bytes_total"]
