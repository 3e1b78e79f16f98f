"""Greedy chat requests, and the token ids that answer them."""

import json

import httpx

from harness import MODEL

# Enough that two different pictures do not agree by chance.
ANSWER_TOKENS = 24


def body(parts: list[dict], **more) -> dict:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": parts}],
        "temperature": 0,
        "max_tokens": ANSWER_TOKENS,
        # Extensions of vLLM: a random model says "end" at any moment; ids do not depend on how text is decoded.
        "ignore_eos": True,
        "return_token_ids": True,
        **more,
    }


def post(url: str, parts: list[dict], *, headers: dict | None = None, **more) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json=body(parts, **more), headers=headers, timeout=300)


def tokens(url: str, parts: list[dict], **more) -> list[int]:
    answer = post(url, parts, **more)
    assert answer.status_code == 200, answer.text
    found = answer.json()["choices"][0]["token_ids"]
    assert len(found) == ANSWER_TOKENS
    return found


def streamed_tokens(url: str, parts: list[dict]) -> list[int]:
    """The same over SSE, with the stream's own form checked: data lines only, [DONE] at the end, several chunks."""
    found: list[int] = []
    chunks = 0
    request = body(parts, stream=True)
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=request, timeout=300) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert events[-1] == "[DONE]"
    for event in map(json.loads, events[:-1]):
        chunks += 1
        for choice in event["choices"]:
            found += choice.get("token_ids") or []
    assert chunks > 2
    assert len(found) == ANSWER_TOKENS
    return found
