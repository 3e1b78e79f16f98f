"""The tokens that routing predicts of a prompt are those that vLLM computes on."""

import json
import subprocess

import httpx
import pytest

import chat
import tiny_model
from harness import GATEWAY, MODEL
from pictures import data_uri, drawing, encode, image, text

PNG = data_uri(encode(drawing(90), "PNG"), "PNG")
OTHER = data_uri(encode(drawing(91).resize((333, 517)), "JPEG"), "JPEG")

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather \u2014 \"today\" in <a city> & 'its' country\n",
            "parameters": {"type": "object", "properties": {"z": {"type": "number", "minimum": -1.5}, "a": {}}},
            "strict": True,
        },
    },
    {"type": "function", "function": {"name": "nothing"}, "unknown": 1},
]
CALL = {"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": '{"z": 1, "a": [true, null]}'}}


def user(content) -> dict:
    return {"role": "user", "content": content}


# What the tiny model's own template does not have: a way with tools, and values that Python prints in its own way.
TOOL_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {% if message.content is string %}
{{ message.content.strip() }}
    {% else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in part %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {% endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n' + call.function.name + ': ' + (call.function.arguments | tojson(indent=2)) }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{{- loud is defined and loud }} {{ messages | length }}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{% endif %}
"""

REQUESTS = {
    "text": {"messages": [user("Describe the weather, please.")]},
    "unicode": {"messages": [user("Caf\u00e9 \u4f60\u597d \U0001f600\t\n  two  spaces ")]},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, user([text("Hello?")])]},
    "one image": {"messages": [user([text("What is in the picture?"), image(PNG)])]},
    "several images": {"messages": [user([image(PNG), text("and"), image(OTHER), image(PNG), text("compare")])]},
    "turns": {
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            user([image(OTHER), text("What colour is it?")]),
            {"role": "assistant", "content": "It is blue."},
            user([text("And this?"), image(PNG)]),
        ]
    },
    "no generation prompt": {"messages": [user("Hello.")], "add_generation_prompt": False},
    "kwargs": {"messages": [user("Hello.")], "chat_template_kwargs": {"loud": True, "enable_thinking": False}},
    "tools": {
        "tools": TOOLS,
        "tool_choice": "none",
        "messages": [
            user([image(PNG), text("Is it raining?")]),
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call-1", "content": [{"type": "text", "text": '{"rain": false}'}]},
            user("So?"),
        ],
    },
}


def predicted(folder, path) -> dict:
    command = [GATEWAY, "prompt", "--model-path", folder, path]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def computed(vllm, request: dict) -> list[int]:
    more = {"model": MODEL, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
    answer = httpx.post(f"{vllm.url}/v1/chat/completions", json=request | more, timeout=300)
    assert answer.status_code == 200, answer.text
    return answer.json()["prompt_token_ids"]


@pytest.mark.parametrize("name", REQUESTS)
def test_predicted_tokens_are_vllms(vllm, tmp_path, name):
    path = tmp_path / "request.json"
    path.write_text(json.dumps(REQUESTS[name]))
    found = predicted(tiny_model.ensure(), path)
    assert found["status"] == "ok", found
    assert found["tokens"] == computed(vllm, REQUESTS[name])
    pads = json.loads((tiny_model.ensure() / "config.json").read_text())["image_token_id"]
    for span in found["images"]:
        assert set(found["tokens"][span["offset"] : span["offset"] + span["length"]]) == {pads}


@pytest.mark.parametrize(
    "escape", [lambda c: f"\\u{ord(c):04x}", lambda c: "\\/" if c == "/" else c], ids=["all", "slash"]
)
def test_images_are_predicted_whatever_way_their_data_uris_are_written(tmp_path, escape):
    plain, escaped = tmp_path / "plain.json", tmp_path / "escaped.json"
    plain.write_text(json.dumps(REQUESTS["several images"]))
    text = plain.read_text()
    for uri in (PNG, OTHER):
        text = text.replace(uri, "".join(map(escape, uri)))
    escaped.write_text(text)
    assert json.loads(text) == REQUESTS["several images"]
    assert PNG not in text
    assert OTHER not in text
    found = predicted(tiny_model.ensure(), escaped)
    assert found["status"] == "ok", found
    assert len(found["images"]) == 3
    assert found["tokens"] == predicted(tiny_model.ensure(), plain)["tokens"]


def test_tokens_of_tools_and_of_a_template_in_full_are_transformers(tmp_path):
    """vLLM's steps around it are in the test above; the template here is one that uses more of Jinja."""
    from transformers import AutoTokenizer

    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_model.ensure().iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    (folder / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    function = {**TOOLS[0]["function"]}
    dumped = [
        {"type": "function", "function": function},
        {"type": "function", "function": {"name": "nothing", "description": None, "parameters": None}},
    ]
    call = {**CALL, "function": {"name": "weather", "arguments": {"z": 1, "a": [True, None]}}}
    conversation = [
        user([text(" Is it raining? ")]),
        {"role": "assistant", "content": [], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": '{"rain": false}'},
        user([text("So?")]),
    ]
    expected = tokenizer.apply_chat_template(
        conversation, tools=dumped, add_generation_prompt=True, loud=True, return_dict=False
    )
    request = {
        "tools": TOOLS,
        "chat_template_kwargs": {"loud": True},
        "messages": [
            user(" Is it raining? "),
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call-1", "content": [{"type": "text", "text": '{"rain": false}'}]},
            user("So?"),
        ],
    }
    path = tmp_path / "request.json"
    path.write_text(json.dumps(request))
    found = predicted(folder, path)
    assert found["status"] == "ok", found
    assert tokenizer.decode(found["tokens"]) == tokenizer.decode(expected)
    assert found["tokens"] == expected


@pytest.mark.parametrize(
    ("request_body", "reason"),
    [
        ({"messages": [user("a picture: <|image_pad|>")]}, "placeholders"),
        (
            {"messages": [user("Hello"), {"role": "assistant", "content": "It"}], "continue_final_message": True},
            "continued",
        ),
        ({"messages": [user("Hello")], "chat_template": "x"}, "template"),
        ({"messages": [user([image("data:image/png;base64,AAAA")])]}, "index 0"),
    ],
)
def test_what_is_not_surely_predicted_is_not_predicted(tmp_path, request_body, reason):
    path = tmp_path / "request.json"
    path.write_text(json.dumps(request_body))
    found = predicted(tiny_model.ensure(), path)
    assert found["status"] == "unknown"
    assert reason in found["reason"]


def test_passthrough_requests_are_known_by_their_tokens(vllm, start_gateway, files):
    url = files.put("/prompts/a.png", encode(drawing(92), "PNG"), "image/png")
    flags = ["--model-path", str(tiny_model.ensure()), "--image-size-timeout-ms", "60000"]
    gateway = start_gateway("prompts", [vllm.url], *flags, frontend_decoding=False).ready()
    for _ in range(2):
        assert chat.post(gateway.url, [image(url), text("?")]).status_code == 200
    assert chat.post(gateway.url, [text("<|image_pad|>")], max_tokens=1).status_code in (200, 400)
    page = httpx.get(f"{gateway.admin_url}/metrics", timeout=60).text
    assert 'mediagate_prompts_total{known_by="tokens"} 2' in page
    assert 'mediagate_prompts_total{known_by="placeholders"} 1' in page
    assert 'mediagate_image_sizes_total{outcome="known"} 2' in page
    # The gateway for the size, once, and the worker for the picture.
    ours = [fetch for fetch in files.fetches if fetch.path == "/prompts/a.png" and "mediagate" in fetch.user_agent]
    assert len(ours) == 1
