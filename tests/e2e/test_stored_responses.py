"""Responses that the worker keeps: asked for again, gone on from, made in the background and cancelled."""

import time

import httpx
import openai
import pytest

from harness import MODEL
from pictures import MIME, data_uri, drawing, encode
from test_surfaces import openai_client, respond, response_input


@pytest.fixture(scope="module")
def picture(files):
    """For the gateway by URL, for vLLM itself in the request."""
    content = encode(drawing(77), "PNG")
    return {"gateway": files.put("/stored/picture.png", content, MIME["PNG"]), "vllm": data_uri(content, "PNG")}


def go_on(server, response_id: str):
    items = [{"role": "user", "content": "And what else is in it?"}]
    return respond(server, items, previous_response_id=response_id, store=True)


def test_a_response_that_is_kept_can_be_asked_for_and_gone_on_from(vllm, gateway, picture):
    direct = respond(vllm, response_input([picture["vllm"]]), store=True)
    made = respond(gateway, response_input([picture["gateway"]]), store=True)
    assert made.output_text == direct.output_text
    with openai_client(gateway) as client:
        again = client.responses.retrieve(made.id)
    assert (again.id, again.output_text) == (made.id, made.output_text)
    # The worker has the picture of the conversation in mind.
    assert go_on(gateway, made.id).output_text == go_on(vllm, direct.id).output_text


def test_a_conversation_goes_on_after_its_picture_is_in_no_cache_any_more(vllm, gateway, picture):
    direct = respond(vllm, response_input([picture["vllm"]]), store=True)
    made = respond(gateway, response_input([picture["gateway"]]), store=True)
    for cache in ("reset_mm_cache", "reset_prefix_cache"):
        assert httpx.post(f"{vllm.url}/{cache}", timeout=60).status_code == 200
    assert go_on(gateway, made.id).output_text == go_on(vllm, direct.id).output_text


def until(client: openai.OpenAI, response_id: str, wanted: set[str]):
    deadline = time.monotonic() + 120
    while (response := client.responses.retrieve(response_id)).status not in wanted:
        assert time.monotonic() < deadline, response.status
        time.sleep(0.05)
    return response


def test_a_response_in_the_background_is_fetched_when_it_is_done(vllm, gateway, picture):
    direct = respond(vllm, response_input([picture["vllm"]]))
    begun = respond(gateway, response_input([picture["gateway"]]), background=True, store=True)
    assert begun.status in {"queued", "in_progress"}
    with openai_client(gateway) as client:
        done = until(client, begun.id, {"completed", "incomplete", "failed"})
    assert done.output_text == direct.output_text


def test_a_response_in_the_background_can_be_cancelled(gateway, picture):
    with openai_client(gateway) as client:
        begun = client.responses.create(
            model=MODEL,
            input=response_input([picture["gateway"]]),
            max_output_tokens=4000,
            background=True,
            store=True,
            extra_body={"ignore_eos": True},
        )
        assert client.responses.cancel(begun.id).status == "cancelled"
        assert client.responses.retrieve(begun.id).status == "cancelled"


def test_a_response_that_nobody_made_is_not_found(gateway):
    with openai_client(gateway) as client:
        for ask in (client.responses.retrieve, client.responses.cancel):
            with pytest.raises(openai.NotFoundError) as refused:
                ask("resp_0123456789abcdef")
            assert refused.value.code == "response_not_found"
    with pytest.raises(openai.NotFoundError):
        go_on(gateway, "resp_0123456789abcdef")


@pytest.mark.parametrize("what", ["transcriptions", "translations"])
def test_audio_that_the_model_does_not_take_is_refused_as_by_vllm(vllm, gateway, what):
    answers = []
    for server in (vllm, gateway):
        with openai_client(server) as client, pytest.raises(openai.APIStatusError) as refused:
            getattr(client.audio, what).create(model=MODEL, file=("speech.wav", b"RIFF\0\0\0\0WAVE", "audio/wav"))
        answers.append((refused.value.status_code, refused.value.body))
    assert answers[0] == answers[1]
