"""Bodies by chance, written in every odd way that JSON allows, for each surface: whatever vLLM itself makes of them, it
fetches nothing and opens no file. What the gateway reads of a body, vLLM reads of it, or this test finds where not.
"""

import json
import os
import random
import secrets
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx

import chat
from harness import MODEL
from pictures import data_uri, drawing, encode, image

REQUESTS = int(os.environ.get("MEDIAGATE_HOSTILE_BODIES", "500"))
# The same each time, but where more are asked for.
SEED = secrets.randbelow(1 << 32) if "MEDIAGATE_HOSTILE_BODIES" in os.environ else 20260801
SURFACES = {
    "/v1/chat/completions": ["messages"],
    "/v1/chat/completions/batch": ["messages"],
    "/v1/responses": ["input"],
    "/v1/messages": ["messages", "system"],
    "/v1/messages/count_tokens": ["messages", "system"],
    "/tokenize": ["messages", "prompt"],
    "/v1/completions": ["prompt"],
}
REACHES_OUT = ("HTTPConnection", "load_file")


class Author:
    """Writes one body."""

    def __init__(self, seed: int, url: str) -> None:
        self.rng = random.Random(seed)
        small = data_uri(encode(drawing(95).resize((28, 28)), "PNG"), "PNG")
        self.urls = [
            url, url, url, small, small, f" {url}", url.replace("http", "HTTP"), f"{url}\0", f"//{url[7:]}",
            url.replace("//", "\\\\"), "file:///etc/hostname", "mediagate://0123456789abcdef/1/1/0/1x1/a/b/1/1/c",
            "data:image/png;base64,AAAA", "", "\ud800", None, 5, True, [url], {"url": url}, {},
        ]  # fmt: skip

    def part(self):
        if self.rng.random() < 0.5:
            # Good, so that others of the same request are looked at as well.
            return {"type": "image_url", "image_url": {"url": self.rng.choice(self.urls[:5])}}
        url = self.rng.choice(self.urls)
        kind = self.rng.choice(["image_url", "image_url", "input_image", "IMAGE_URL", "text", None, ["image_url"]])
        part = self.rng.choice(
            [
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
                {"type": "input_image", "image_url": url, "detail": "auto"},
                {"type": kind, "image_url": {"url": url}},
                {"type": kind, "image_url": url},
                {"image_url": {"url": url}},
                {"image_url": url},
                {"type": "image", "image": url},
                {"type": "image_pil", "image_pil": url},
                {"type": "image_embeds", "image_embeds": url},
                {"type": "image", "source": {"type": "url", "url": url}},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": url}},
                {"type": "tool_result", "tool_use_id": "t", "content": [{"image_url": {"url": url}, "type": kind}]},
                {"type": "tool_result", "tool_use_id": "t", "content": [{"source": {"type": "url", "url": url}}]},
                {"type": "video_url", "video_url": {"url": url}},
                {"type": "audio_url", "audio_url": {"url": url}},
                {"type": "file", "file": {"file_data": url, "file_id": url}},
                {"type": "input_file", "file_url": url},
                {"type": "text", "text": "x"},
                {"type": None, "image_url": {"url": url}, "video_url": url},
                url,
                [{"type": "image_url", "image_url": {"url": url}}],
            ]
        )
        if isinstance(part, dict) and self.rng.random() < 0.2:
            part["uuid"] = self.rng.choice(["a", None, 5, "x" * 100, []])
        return part

    def content(self):
        parts = [self.part() for _ in range(self.rng.choice([1, 1, 2, 3]))]
        return self.rng.choice([parts] * 8 + [parts[0], "hi", None, 5, {"content": parts}])

    def message(self):
        role = self.rng.choice(["user"] * 8 + ["system", "assistant", "tool", "developer", 5, None])
        message = {"role": role, "content": self.content()}
        odd = [
            {"type": "function_call_output", "call_id": "c", "output": self.content()},
            {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": self.urls[0]}},
            {"type": "message", **message},
            message | {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            message | {"reasoning": self.content()},
            [message],
        ]
        return self.rng.choice(odd) if self.rng.random() < 0.2 else message

    def body(self, members: list[str]) -> dict:
        body = {"model": MODEL, "max_tokens": 1, "max_output_tokens": 1, "store": False}
        for member in members:
            messages = [self.message() for _ in range(self.rng.choice([1, 1, 2]))]
            body[member] = self.rng.choice([messages] * 8 + [messages[0], [messages], self.content(), self.urls[0]])
        if self.rng.random() < 0.2:
            more = ["stream", "tools", "documents", "media_io_kwargs", "mm_processor_kwargs", "previous_input_messages"]
            body[self.rng.choice(more)] = self.rng.choice([True, None, 5, "x", [], {}, self.urls[0], [self.part()]])
        return body

    # The same value, written in other ways.

    def string(self, text: str) -> str:
        if self.rng.random() < 0.7:
            return json.dumps(text)
        escaped = (json.dumps(c)[1:-1] if self.rng.random() < 0.7 else self.escape(c) for c in text)
        return '"' + "".join(escaped) + '"'

    def escape(self, character: str) -> str:
        if character == "/":
            return self.rng.choice(["\\/", "\\u002f", "\\u002F"])
        units = character.encode("utf-16-be", "surrogatepass").hex()
        return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))

    def write(self, value) -> str:
        space = self.rng.choice(["", "", " ", "\r\n\t"])
        if isinstance(value, str):
            return self.string(value)
        if isinstance(value, list):
            return "[" + space + f"{space},".join(map(self.write, value)) + space + "]"
        if not isinstance(value, dict):
            return json.dumps(value)
        members = [(key, self.write(inner)) for key, inner in value.items()]
        self.rng.shuffle(members)
        if members and self.rng.random() < 0.04:
            twin = self.rng.choice(members)[0], self.write(self.rng.choice(self.urls))
            members.insert(self.rng.randrange(len(members) + 1), twin)
        return "{" + f"{space},".join(f"{self.string(key)}{space}:{space}{text}" for key, text in members) + "}"


def test_whatever_a_body_is_the_worker_fetches_nothing_and_opens_no_file(vllm, gateway, files):
    url = files.put("/hostile/a.png", encode(drawing(96).resize((28, 28)), "PNG"), "image/png")
    print(f"seed {SEED}")
    outcomes: Counter[str] = Counter()

    def send(number: int) -> None:
        author = Author(SEED + number, url)
        path = author.rng.choice(list(SURFACES))
        text = author.write(author.body(SURFACES[path]))
        answer = http.post(gateway.url + path, content=text, headers={"content-type": "application/json"})
        outcomes[str(answer.status_code)] += 1
        # vLLM's own 500s pass, too; that the gateway or the worker is gone does not.
        assert answer.status_code not in (502, 503, 504), (path, text, answer.text)

    with httpx.Client(timeout=300) as http, vllm.traced() as seen, ThreadPoolExecutor(8) as pool:
        list(pool.map(send, range(REQUESTS)))
    print(dict(outcomes))
    assert outcomes["200"] > REQUESTS / 100, "some of them are good"
    assert outcomes["400"] > REQUESTS / 100, "some of them are bad"
    assert not [what for what in seen if any(way in what for way in REACHES_OUT)], seen
    strangers = {fetch.user_agent for fetch in files.fetches if fetch.path == "/hostile/a.png"}
    assert all(agent.startswith("mediagate") for agent in strangers), strangers


def test_the_worker_itself_would_have(vllm, files):
    """Else the silence above means nothing."""
    url = files.put("/hostile/b.png", encode(drawing(97), "PNG"), "image/png")
    with vllm.traced() as seen:
        answer = chat.post(vllm.url, [image(url)], max_tokens=1)
    assert [what for what in seen if "HTTPConnection" in what], answer.text
