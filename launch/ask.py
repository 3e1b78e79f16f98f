#!/usr/bin/env python3
"""Sends one picture to a gateway and shows the answer, and where the time went.

    ask.py [--url http://127.0.0.1:8080] [--model NAME] PICTURE [QUESTION]

PICTURE is a file or an http(s) URL.
"""

import argparse
import base64
import contextlib
import json
import mimetypes
import pathlib
import time
import urllib.error
import urllib.request

# What the gateway calls its stages in the header `server-timing`.
STAGES = {
    "body": "reading the request",
    "scan": "finding the images in it",
    "fetch": "fetching the image",
    "admission": "waiting for memory",
    "decode": "decoding and hashing",
    "terms": "what routing goes by",
    "prepare": "finding room on the worker",
    "push": "pushing the pixels over NIXL",
    "worker": "the worker, to the head of its answer",
    "total": "in the gateway, all together",
}


def call(url: str, body: dict | None = None, headers: dict | None = None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer), answer.headers
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{error.code} from {url}: {error.read().decode(errors='replace')}") from None
    except urllib.error.URLError as error:
        raise SystemExit(f"{url}: {error.reason}") from None


def main() -> None:
    arguments = argparse.ArgumentParser(description="Sends one picture to a gateway and shows the answer.")
    arguments.add_argument("--url", default="http://127.0.0.1:8080")
    arguments.add_argument("--model", help="default: the first that the gateway lists")
    arguments.add_argument("picture", help="a file or an http(s) URL")
    arguments.add_argument("question", nargs="?", default="Describe this image in detail.")
    given = arguments.parse_args()

    source = given.picture
    if not source.startswith(("http://", "https://")):
        kind = mimetypes.guess_type(source)[0] or "application/octet-stream"
        content = base64.b64encode(pathlib.Path(source).read_bytes()).decode()
        source = f"data:{kind};base64,{content}"
    model = given.model or call(f"{given.url}/v1/models")[0]["data"][0]["id"]
    parts = [{"type": "image_url", "image_url": {"url": source}}, {"type": "text", "text": given.question}]
    body = {"model": model, "temperature": 0, "max_tokens": 24, "messages": [{"role": "user", "content": parts}]}

    begun = time.perf_counter()
    answer, headers = call(f"{given.url}/v1/chat/completions", body, {"x-mediagate-debug": "1"})
    took = (time.perf_counter() - begun) * 1000

    content = answer["choices"][0]["message"]["content"]
    # The stand-in answers in JSON, a model in words.
    with contextlib.suppress(ValueError):
        content = json.dumps(json.loads(content), indent=2)
    print(f"{given.question}\n{content}\n")
    print(f"route: {headers.get('x-mediagate-route', 'not told')}")
    for stage in filter(None, headers.get("server-timing", "").split(",")):
        name, _, milliseconds = stage.strip().partition(";dur=")
        print(f"{float(milliseconds):10.2f} ms  {name:<10} {STAGES.get(name, '')}")
    print(f"{took:10.2f} ms  {'client':<10} from request to answer")


if __name__ == "__main__":
    main()
