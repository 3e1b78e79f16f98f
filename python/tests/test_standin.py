"""The stand-in where no pixels are pushed: data: URIs, uuids, streams, and what it refuses as vLLM does."""

import base64
import hashlib
import http.server
import io
import json
import threading

import numpy as np
import pytest
from gateway import Gateway, picture
from PIL import Image

from mediagate_vllm.content import content_hash
from mediagate_vllm.standin.cache import Facts, UuidCache

CACHE_MISS = {
    "error": {
        "code": 400,
        "message": "Cache miss for image at index 0 but data is not provided.",
        "param": None,
        "type": "BadRequestError",
    }
}


@pytest.fixture(scope="module")
def plain(start_module) -> Gateway:
    """A stand-in without NIXL; only its HTTP is used."""
    return Gateway(start_module("--no-nixl", "--cache-items", "2").wait().url)


def ppm(pixels: np.ndarray) -> bytes:
    height, width, _ = pixels.shape
    return b"P6\n%d %d\n255\n" % (width, height) + pixels.tobytes()


def data_uri(encoded: bytes, kind: str = "image/x-portable-pixmap") -> str:
    return f"data:{kind};base64,{base64.b64encode(encoded).decode()}"


def encoded(image: Image.Image, form: str) -> str:
    out = io.BytesIO()
    image.save(out, form)
    return data_uri(out.getvalue(), f"image/{form.lower()}")


def test_binary_ppm_and_png_show_the_same(plain: Gateway):
    pixels = picture(1, 30, 50)
    status, (from_ppm, from_png) = plain.see(data_uri(ppm(pixels)), encoded(Image.fromarray(pixels), "PNG"))
    assert status == 200
    assert from_ppm == from_png
    assert from_ppm == {
        "height": 30,
        "width": 50,
        "content_hash": content_hash(pixels.reshape(-1), 30, 50),
        "rgb_sha256": hashlib.sha256(pixels.tobytes()).hexdigest(),
        "transfer": "original",
    }


def test_transparency_lies_on_white(plain: Gateway):
    image = Image.new("RGBA", (2, 1), (0, 0, 255, 0))
    white = np.full((1, 2, 3), 255, np.uint8)
    assert plain.see(encoded(image, "PNG"))[1][0]["rgb_sha256"] == hashlib.sha256(white.tobytes()).hexdigest()


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,!!!",
        "data:image/png;base64,AAAA",
        "data:nothing",
        data_uri(ppm(picture(1))[:-1]),
        data_uri(b"P6\n0 0\n255\n"),
        "ftp://host/picture.png",
        "picture.png",
        "http://127.0.0.1:9/never-asked-for.png",
        "mediagate://0123456789abcdef/1/1/0/1x1/0123456789abcdef/" + "0" * 64 + "/1/0/" + "0" * 32,
    ],
)
def test_what_is_no_image_is_refused(plain: Gateway, url: str):
    assert plain.see(url)[0] == 400


def test_without_nixl_there_is_no_attach_route(plain: Gateway):
    assert plain.post("/mediagate/attach/hello", "{}")[0] == 404


def test_uuid_is_remembered_and_unknown_ones_miss(plain: Gateway):
    pixels = picture(2)
    uuid = "a" * 64
    url = data_uri(ppm(pixels))
    assert plain.chat({"type": "image_url", "image_url": None, "uuid": uuid}) == (400, CACHE_MISS)
    assert plain.chat({"type": "image_url", "image_url": {"url": url}, "uuid": uuid})[0] == 200
    status, answer = plain.chat({"type": "image_url", "image_url": None, "uuid": uuid})
    assert status == 200
    (seen,) = json.loads(answer["choices"][0]["message"]["content"])["images"]
    assert seen["transfer"] == "uuid"
    assert seen["rgb_sha256"] == hashlib.sha256(pixels.tobytes()).hexdigest()
    for n in range(2):
        plain.chat({"type": "image_url", "image_url": {"url": data_uri(ppm(picture(n)))}, "uuid": f"{n}"})
    assert plain.chat({"type": "image_url", "image_url": None, "uuid": uuid}) == (400, CACHE_MISS)


def test_known_uuid_wins_over_pixels(plain: Gateway):
    first, second = data_uri(ppm(picture(3))), data_uri(ppm(picture(4)))
    plain.chat({"type": "image_url", "image_url": {"url": first}, "uuid": "same"})
    _, answer = plain.chat({"type": "image_url", "image_url": {"url": second}, "uuid": "same"})
    (seen,) = json.loads(answer["choices"][0]["message"]["content"])["images"]
    assert seen["rgb_sha256"] == hashlib.sha256(picture(3).tobytes()).hexdigest()


def test_cache_is_bounded():
    cache = UuidCache(max_items=3, max_bytes=100)
    for n in range(10):
        cache.put(str(n), Facts(1, 10, "", ""))
    assert cache.get("6") is None
    assert all(cache.get(str(n)) for n in (7, 8, 9))
    cache.put("large", Facts(10, 10, "", ""))
    assert cache.get("large") is None
    cache.put("most", Facts(1, 20, "", ""))
    assert cache.get("9")
    assert not cache.get("8")


def test_stream_says_the_same_and_ends(plain: Gateway):
    part = {"type": "image_url", "image_url": {"url": data_uri(ppm(picture(5)))}}
    body = {"messages": [{"role": "user", "content": [part]}], "stream": True}
    answer = plain.http.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done, end = answer.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    deltas = [json.loads(e.removeprefix("data: "))["choices"][0]["delta"] for e in events]
    text = "".join(d.get("content", "") for d in deltas)
    assert json.loads(text) == {"images": plain.see(data_uri(ppm(picture(5))))[1]}


def test_other_routes(plain: Gateway):
    assert plain.http.get("/health").status_code == 200
    assert plain.http.get("/v1/models").json()["data"][0]["id"] == "standin"
    assert "version" in plain.http.get("/version").json()
    assert "vllm:mm_cache_hits_total" in plain.http.get("/metrics").text
    assert plain.chat({"type": "text", "text": "no image"})[0] == 200
    assert plain.chat(model="another")[0] == 404
    for body in ("", "[]", "{}", '{"messages": 1}', '{"messages": []}'):
        assert plain.http.post("/v1/chat/completions", content=body).status_code == 400


def test_http_is_fetched_only_where_allowed(start):
    pixels = picture(6)
    asked: list[str] = []

    class Pictures(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ppm(pixels))

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pictures) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/picture"
        refusing = Gateway(start("--no-nixl").wait().url)
        fetching = Gateway(start("--no-nixl", "--allow-http").wait().url)
        assert refusing.see(url)[0] == 400
        assert asked == []
        assert fetching.see(url)[1][0]["rgb_sha256"] == hashlib.sha256(pixels.tobytes()).hexdigest()
        server.shutdown()
