#!/usr/bin/env python3
"""What a request with one picture costs a gateway: mediagate beside NVIDIA Dynamo and SMG, on one machine, in one run.

    compare.py --model FOLDER --peers FOLDER [--requests N]

`launch/peers.sh` makes what it needs and calls it. First with frontend decoding, beside Dynamo: both tokenise, route
by KV cache, fetch, decode, hash, and hand the pixels to their worker over NIXL. Then as gateways that pass images on,
beside SMG. The workers answer at once. Requests go one after the other over one connection, in blocks that change
between the gateways. CPU is the gateway process's user and system time over the requests. Prints tables in Markdown.
"""

import argparse
import base64
import contextlib
import http.client
import importlib.util
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator

import servers

import pictures

ROUNDS = 4


class Case:
    """Requests of one kind; each call makes the next body."""

    def __init__(self, name: str, urls: list[str | None]) -> None:
        self.name = name
        self.urls = urls

    def bodies(self, model: str) -> Iterator[bytes]:
        turn = 0
        while True:
            content: list[dict] = [{"type": "text", "text": "What is in this picture?"}]
            if url := self.urls[turn % len(self.urls)]:
                content.append({"type": "image_url", "image_url": {"url": url}})
            turn += 1
            message = {"role": "user", "content": content}
            yield json.dumps({"model": model, "max_tokens": 4, "messages": [message]}).encode()


def cases(server: pictures.Server, sizes: tuple[str, ...], count: int) -> Iterator[Case]:
    """Each with `count` pictures that nobody has seen, or one that everybody has."""

    def data_uri(kind: str, file: bytes) -> str:
        return f"data:image/{kind};base64,{base64.b64encode(file).decode()}"

    yield Case("text alone", [None])
    for size in sizes:
        for kind in ("jpeg", "png"):
            files = pictures.make(size, kind, count)
            mean = sum(map(len, files)) / count / 1e6
            urls = [server.put(f"{size}-{i}.{kind}", f"image/{kind}", file) for i, file in enumerate(files)]
            yield Case(f"{kind.upper()} {size} ({mean:.2f} MB) by URL, new", list(urls))
            yield Case(f"{kind.upper()} {size} by URL, the same again", urls[:1])
            # Other pixels than those by URL: the first half brightened anew.
            encoded = [data_uri(kind, file) for file in pictures.make(size, kind, 2 * count)[1::2]]
            yield Case(f"{kind.upper()} {size} as base64, new", list(encoded))
            yield Case(f"{kind.upper()} {size} as base64, the same again", encoded[:1])


class Client:
    def __init__(self, gateway: servers.Gateway, case: Case) -> None:
        self.gateway = gateway
        self.bodies = case.bodies(gateway.model)
        self.connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
        self.cpu = 0.0
        self.milliseconds: list[float] = []

    def block(self, requests: int, *, counted: bool = True) -> None:
        before = self.gateway.cpu_seconds()
        for _ in range(requests):
            body = next(self.bodies)
            start = time.perf_counter()
            self.connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            answer = self.connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                sys.exit(f"{self.gateway.name} answered {answer.status}: {text[:300]!r}")
            if counted:
                self.milliseconds.append((time.perf_counter() - start) * 1e3)
        if counted:
            self.cpu += self.gateway.cpu_seconds() - before

    def cpu_ms(self) -> float:
        return self.cpu * 1e3 / len(self.milliseconds)

    def median_ms(self) -> float:
        return sorted(self.milliseconds)[len(self.milliseconds) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=pathlib.Path, required=True, help="folder with tokenizer and config")
    parser.add_argument("--peers", type=pathlib.Path, required=True, help="Python environment with ai-dynamo and smg")
    parser.add_argument("--requests", type=int, default=80, help="a case and gateway")
    parser.add_argument("--logs", type=pathlib.Path, default=pathlib.Path(".cache/logs"))
    arguments = parser.parse_args()
    found = importlib.util.find_spec("nixl_cu12")
    if not found or not found.origin:
        sys.exit("this Python has no NIXL; launch/setup-python.sh makes one that has")
    nixl = pathlib.Path(found.origin).parents[1] / ".nixl_cu12.mesonpy.libs"
    arguments.logs.mkdir(parents=True, exist_ok=True)
    logs, programs = arguments.logs.resolve(), arguments.peers / "bin"

    server = pictures.Server()
    print("Frontend decoding\n")
    mediagate, dynamo = servers.Mediagate(logs), servers.Dynamo(logs)
    with running(
        lambda: mediagate.decoding(arguments.model, nixl, server.port),
        lambda: dynamo.decoding(arguments.model, nixl, programs / "python"),
    ) as gateways:
        compare(gateways, server, ("480p", "1080p"), arguments.requests)
    print("\nImages passed through\n")
    mediagate, smg = servers.Mediagate(logs), servers.Smg(logs)
    with running(lambda: mediagate.passing(server.port), lambda: smg.passing(programs / "smg")) as gateways:
        # One size: what costs time here is the worker, which decodes.
        compare(gateways, server, ("480p",), arguments.requests)


@contextlib.contextmanager
def running(*starts: Callable[[], servers.Gateway]) -> Iterator[list[servers.Gateway]]:
    gateways: list[servers.Gateway] = []
    try:
        for start in starts:
            gateways.append(start())
        for gateway in gateways:
            gateway.ready()
        yield gateways
    finally:
        for gateway in gateways:
            gateway.stop()


def compare(gateways: list[servers.Gateway], server: pictures.Server, sizes: tuple[str, ...], requests: int) -> None:
    names = [gateway.name for gateway in gateways]
    heads = [f"{name}, {what}" for what in ("CPU ms", "p50 ms") for name in names]
    print(f"| request | {' | '.join(heads)} | CPU, {names[1]} / {names[0]} |")
    print(f"| --- |{' ---: |' * (len(heads) + 1)}", flush=True)
    block = max(requests // ROUNDS, 1)
    for case in cases(server, sizes, block * ROUNDS + 2):
        clients = [Client(gateway, case) for gateway in gateways]
        for client in clients:
            client.block(2, counted=False)
        for turn in range(ROUNDS):
            for client in clients if turn % 2 == 0 else reversed(clients):
                client.block(block)
        cpu = [client.cpu_ms() for client in clients]
        cells = [f"{value:.2f}" for value in cpu] + [f"{client.median_ms():.1f}" for client in clients]
        print(f"| {case.name} | {' | '.join(cells)} | {cpu[1] / cpu[0]:.1f} |", flush=True)


main()
