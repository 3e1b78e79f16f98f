"""What clients cannot do: reach other routes, name images, make workers fetch, or learn what is not theirs."""

import httpx
import pytest

import chat
from harness import free_port
from pictures import PHOTO, data_uri, drawing, encode, image, text

QUESTION = text("What is it?")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/mediagate/attach"),
        ("POST", "/mediagate/attach/hello"),
        ("POST", "/mediagate/renew"),
        ("POST", "/mediagate/void"),
        ("POST", "/mediagate/detach"),
        ("POST", "//mediagate/attach"),
        ("POST", "/v1/../mediagate/attach/hello"),
        ("POST", "/%6dediagate/attach/hello"),
        ("GET", "/metrics"),
        ("GET", "/version"),
        ("GET", "/load"),
        ("GET", "/kv_event_sources"),
        ("GET", "/openapi.json"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/inference/v1/generate"),
        ("POST", "/reset_prefix_cache"),
        ("POST", "/reset_mm_cache"),
        ("POST", "/collective_rpc"),
        ("GET", "/server_info"),
        ("POST", "/sleep"),
        ("POST", "/scale_elastic_ep"),
    ],
)
def test_no_other_route_is_reachable(gateway, method, path):
    # The path as it is written: a client library would tidy it up.
    url = httpx.URL(gateway.url).copy_with(raw_path=path.encode())
    answer = httpx.request(method, url, json={} if method == "POST" else None, timeout=60)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"]


def test_the_worker_itself_has_those_routes(vllm):
    """Otherwise the test above would prove nothing."""
    assert httpx.get(f"{vllm.url}/metrics", timeout=60).status_code == 200
    assert httpx.get(f"{vllm.url}/version", timeout=60).status_code == 200
    assert httpx.get(f"{vllm.url}/server_info", timeout=60).status_code == 200
    assert httpx.post(f"{vllm.url}/reset_mm_cache", timeout=60).status_code == 200
    assert httpx.post(f"{vllm.url}/mediagate/attach/hello", json={}, timeout=60).status_code not in (404, 405)


def refused(answer: httpx.Response, status: int, param: str | None) -> dict:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert error["param"] == param
    assert error["message"]
    assert "Traceback" not in answer.text
    return error


GARBAGE = b"\xff\xd8\xff\xe0 this is no JPEG"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(GARBAGE, id="garbage"),
        pytest.param(PHOTO[: len(PHOTO) // 2], id="truncated"),
        pytest.param(b"", id="empty"),
        pytest.param(b"<html>Not Found</html>", id="html"),
        pytest.param(b"<svg xmlns='http://www.w3.org/2000/svg'/>", id="svg"),
    ],
)
def test_a_bad_image_is_the_clients_error_and_is_named_by_its_place(vllm, gateway, files, content, request):
    good = data_uri(encode(drawing(80), "PNG"), "PNG")
    bad = files.put(f"/bad/{request.node.callspec.id}.jpg", content, "image/jpeg")
    with vllm.traced() as seen:
        answer = chat.post(gateway.url, [QUESTION, image(good), image(bad)])
    error = refused(answer, 400, "messages[0].content[2].image_url")
    assert "index 1" in error["message"]
    assert not seen


def test_an_error_does_not_repeat_the_urls_query(gateway, files):
    files.put("/bad/signed.jpg", GARBAGE, "image/jpeg")
    for path in ("/bad/signed.jpg", "/bad/missing.jpg"):
        url = f"http://127.0.0.1:{files.port}{path}?X-Signature=very-secret"
        answer = chat.post(gateway.url, [image(url), QUESTION])
        refused(answer, 400, "messages[0].content[0].image_url")
        assert "very-secret" not in answer.text


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.com/picture.png",
        "mediagate://0123456789abcdef/1/1/0/2x2/0123456789abcdef/" + "0" * 64 + "/1/1000/" + "0" * 32,
        "data:image/png;base64,!!!!",
        "not a url",
    ],
)
def test_other_schemes_are_refused(vllm, gateway, url):
    with vllm.traced() as seen:
        answer = chat.post(gateway.url, [image(url), QUESTION])
    refused(answer, 400, "messages[0].content[0].image_url")
    assert not seen


def test_a_private_address_is_not_fetched(gateway, files):
    """The test's web server is allowed by its port; another port of the same address is not."""
    other = free_port()
    answer = chat.post(gateway.url, [image(f"http://127.0.0.1:{other}/picture.png"), QUESTION])
    refused(answer, 400, "messages[0].content[0].image_url")


def test_a_client_cannot_name_an_image(vllm, gateway):
    """vLLM takes a uuid as the image's only name: one that a client chose would answer with somebody else's picture."""
    mine, theirs = (encode(drawing(n), "PNG") for n in (81, 82))
    named = {**image(data_uri(mine, "PNG")), "uuid": "a-name-of-my-choice"}
    chat.tokens(gateway.url, [named, QUESTION])
    taken = {**image(data_uri(theirs, "PNG")), "uuid": "a-name-of-my-choice"}
    through_gateway = chat.tokens(gateway.url, [taken, QUESTION])
    assert through_gateway == chat.tokens(vllm.url, [image(data_uri(theirs, "PNG")), QUESTION])

    nameless = {"type": "image_url", "image_url": None, "uuid": "a-name-of-my-choice"}
    assert chat.post(gateway.url, [nameless, QUESTION]).status_code == 400


def test_what_vllm_refuses_comes_back_as_vllm_said_it(vllm, gateway):
    wrong = {"temperature": -1}
    direct, through = (chat.post(url, [QUESTION], **wrong) for url in (vllm.url, gateway.url))
    assert direct.status_code == 400
    assert through.status_code == direct.status_code
    assert through.json() == direct.json()


def test_no_worker_is_503_and_a_dead_one_is_502_or_503(start_gateway, vllm):
    dead = start_gateway("gateway-dead", [f"http://127.0.0.1:{free_port()}"])
    dead.wait_until_ready(f"{dead.url}/health", 180)
    assert httpx.get(f"{dead.url}/ready", timeout=60).status_code == 503
    answer = chat.post(dead.url, [QUESTION])
    assert answer.status_code in (502, 503)
    assert answer.json()["error"]["code"]


def test_every_answer_has_a_request_id(gateway):
    assert chat.post(gateway.url, [QUESTION], max_tokens=1).headers["x-request-id"]
    assert httpx.get(f"{gateway.url}/nowhere", timeout=60).headers["x-request-id"]
    answer = httpx.get(f"{gateway.url}/v1/models", headers={"x-request-id": "mine-1"}, timeout=60)
    assert answer.headers["x-request-id"] == "mine-1"
