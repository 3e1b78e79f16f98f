"""Responses, Anthropic's messages and the rest of the API, with the official clients.

What the model says of an image is what it says to who asks vLLM directly, and the worker opens and fetches nothing.
"""

import base64
import contextlib

import anthropic
import httpx
import openai
import pytest

from harness import MODEL
from pictures import MIME, PHOTO, data_uri, drawing, encode

ANSWER_TOKENS = 24
QUESTION = "Describe this image in detail."
# Anthropic's client has no argument for it; its API, and vLLM's, do.
GREEDY = {"temperature": 0}


def openai_client(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)


def anthropic_client(server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=300)


@contextlib.contextmanager
def nothing_opened(vllm):
    with vllm.traced() as seen:
        yield
    assert not seen, f"the worker opened or fetched something: {seen}"


@pytest.fixture(scope="module")
def two(files):
    """Two pictures: for the gateway by URL and by data: URI, for vLLM itself in the request."""
    first, second = encode(drawing(70), "PNG"), encode(drawing(71), "WEBP", lossless=True)
    url = files.put("/surfaces/first.png", first, MIME["PNG"])
    by_value = [data_uri(first, "PNG"), data_uri(second, "WEBP")]
    return {"gateway": [url, by_value[1]], "vllm": by_value}


def response_input(urls: list[str]) -> list[dict]:
    images = [{"type": "input_image", "image_url": url, "detail": "auto"} for url in urls]
    return [{"role": "user", "content": [*images, {"type": "input_text", "text": QUESTION}]}]


def respond(server, items: list[dict], **more):
    # What is kept goes inline (test_stored_responses.py); this is pushed.
    request = {"model": MODEL, "input": items, "temperature": 0, "max_output_tokens": ANSWER_TOKENS, "store": False}
    with openai_client(server) as client:
        return client.responses.create(**{**request, **more}, extra_body={"ignore_eos": True})


def test_responses(vllm, gateway, two):
    with nothing_opened(vllm):
        answer = respond(gateway, response_input(two["gateway"]))
        # The second time the worker knows the pictures, and gets their names alone.
        again = respond(gateway, response_input(two["gateway"]))
    assert answer.output_text == again.output_text == respond(vllm, response_input(two["vllm"])).output_text
    other = respond(gateway, response_input(two["gateway"][::-1]))
    assert other.output_text != answer.output_text


def test_responses_streamed(vllm, gateway, two):
    with openai_client(gateway) as client, nothing_opened(vllm):
        stream = client.responses.create(
            model=MODEL,
            input=response_input(two["gateway"]),
            temperature=0,
            max_output_tokens=ANSWER_TOKENS,
            extra_body={"ignore_eos": True},
            store=False,
            stream=True,
        )
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert said == respond(vllm, response_input(two["vllm"])).output_text


def test_an_image_that_a_tool_gave_a_response(vllm, gateway, two):
    def conversation(url: str) -> list[dict]:
        return [
            {"role": "user", "content": "Take a picture."},
            {"type": "function_call", "call_id": "c1", "name": "camera", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [{"type": "input_image", "image_url": url, "detail": "auto"}],
            },
        ]

    with nothing_opened(vllm):
        answer = respond(gateway, conversation(two["gateway"][0]))
    assert answer.output_text == respond(vllm, conversation(two["vllm"][0])).output_text


def source(url: str, as_base64: bool) -> dict:
    if not as_base64:
        return {"type": "url", "url": url}
    head, _, data = url.partition(",")
    return {"type": "base64", "media_type": head.removeprefix("data:").removesuffix(";base64"), "data": data}


def ask(server, content: list[dict], **more) -> str:
    # Anthropic's API has no way to go on after the model's end; the first of its words tell pictures apart as well.
    with anthropic_client(server) as client:
        messages = [{"role": "user", "content": content}]
        answer = client.messages.create(
            model=MODEL, max_tokens=ANSWER_TOKENS, messages=messages, extra_body=GREEDY, **more
        )
    assert answer.type == "message"
    return "".join(block.text for block in answer.content if block.type == "text")


def blocks(urls: list[str], as_base64: bool) -> list[dict]:
    images = [{"type": "image", "source": source(url, as_base64 and url.startswith("data:"))} for url in urls]
    return [*images, {"type": "text", "text": QUESTION}]


def test_messages_by_url_and_by_base64(vllm, gateway, two):
    expected = ask(vllm, blocks(two["vllm"], as_base64=True))
    assert expected
    with nothing_opened(vllm):
        assert ask(gateway, blocks(two["gateway"], as_base64=False)) == expected
        assert ask(gateway, blocks(two["vllm"], as_base64=True)) == expected
        assert ask(gateway, blocks(two["vllm"][::-1], as_base64=True)) != expected


def test_messages_streamed(vllm, gateway, two):
    with anthropic_client(gateway) as client, nothing_opened(vllm):
        messages = [{"role": "user", "content": blocks(two["gateway"], as_base64=True)}]
        with client.messages.stream(
            model=MODEL, max_tokens=ANSWER_TOKENS, messages=messages, extra_body=GREEDY
        ) as stream:
            said = "".join(stream.text_stream)
    assert said == ask(vllm, blocks(two["vllm"], as_base64=True))


def test_an_image_in_the_result_of_a_tool(vllm, gateway, two):
    def told(server, url: str) -> str:
        image = {"type": "image", "source": source(url, url.startswith("data:"))}
        messages = [
            {"role": "user", "content": "Take a picture."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "camera", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [image]}]},
        ]
        with anthropic_client(server) as client:
            answer = client.messages.create(model=MODEL, max_tokens=ANSWER_TOKENS, messages=messages, extra_body=GREEDY)
        return "".join(block.text for block in answer.content if block.type == "text")

    with nothing_opened(vllm):
        through_gateway = told(gateway, two["gateway"][0])
    assert through_gateway == told(vllm, two["vllm"][0])


def test_tokens_are_counted_with_the_images(vllm, gateway, two):
    def count(server, urls: list[str]) -> int:
        with anthropic_client(server) as client:
            messages = [{"role": "user", "content": blocks(urls, as_base64=True)}]
            return client.messages.count_tokens(model=MODEL, messages=messages).input_tokens

    with nothing_opened(vllm):
        counted = count(gateway, two["gateway"])
    assert counted == count(vllm, two["vllm"]) > 2 * 100


def test_anthropics_client_sees_refusals_as_its_own_errors(gateway, files):
    url = files.put("/surfaces/broken.jpg", PHOTO[:1000], MIME["JPEG"])
    garbage = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"no picture").decode()}
    with anthropic_client(gateway) as client:
        for image in ({"type": "url", "url": url}, garbage):
            messages = [{"role": "user", "content": [{"type": "image", "source": image}]}]
            with pytest.raises(anthropic.BadRequestError) as refused:
                client.messages.create(model=MODEL, max_tokens=1, messages=messages)
            body = refused.value.body
            assert body["type"] == "error"
            assert body["error"]["type"] == "invalid_request_error"
            assert body["error"]["param"] == "messages[0].content[0].source"
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(model="none", max_tokens=1, messages=[{"role": "user", "content": "x"}])


def test_an_unknown_model_and_an_unknown_response_are_openais_not_found(gateway):
    with openai_client(gateway) as client:
        assert client.models.retrieve(MODEL).id == MODEL
        for call in (
            lambda: client.models.retrieve("none"),
            lambda: client.chat.completions.create(model="none", messages=[{"role": "user", "content": "x"}]),
            lambda: client.responses.create(model=MODEL, input="x", previous_response_id="resp_none"),
            lambda: client.responses.retrieve("resp_none"),
            lambda: client.responses.cancel("resp_none"),
        ):
            with pytest.raises(openai.NotFoundError) as refused:
                call()
            assert refused.value.code in ("model_not_found", "response_not_found")


def test_completions_and_tokens_pass_as_they_are(vllm, gateway):
    def complete(server) -> str:
        with openai_client(server) as client:
            answer = client.completions.create(model=MODEL, prompt="The quick", temperature=0, max_tokens=8)
        return answer.choices[0].text

    assert complete(gateway) == complete(vllm)
    tokens = httpx.post(f"{gateway.url}/tokenize", json={"model": MODEL, "prompt": "The quick"}, timeout=60).json()[
        "tokens"
    ]
    answer = httpx.post(f"{gateway.url}/detokenize", json={"model": MODEL, "tokens": tokens}, timeout=60)
    assert answer.json()["prompt"] == "The quick"


def test_a_chat_is_tokenized_with_its_images(vllm, gateway, two):
    def count(server, url: str) -> int:
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
        return httpx.post(f"{server.url}/tokenize", json=body, timeout=60).json()["count"]

    with nothing_opened(vllm):
        counted = count(gateway, two["gateway"][0])
    assert counted == count(vllm, two["vllm"][0])
