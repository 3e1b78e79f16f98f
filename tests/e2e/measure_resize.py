#!/usr/bin/env python3
"""What a request with one photograph costs a real vLLM: asked directly, and behind a gateway that resizes or does not.

    .venv/bin/python tests/e2e/measure_resize.py [REPETITIONS]

Prints a table in Markdown, means. The worker's CPU is that of its API server process, where images are processed; the
engine's, which would be a GPU's work, is not counted. Every request has a photograph and a cache_salt of its own, so
nothing is cached.
"""

import io
import os
import pathlib
import sys
import time

from PIL import Image

import chat
import harness
from harness import Gateway, Vllm, nixl_lib_dir
from pictures import PHOTO, data_uri, encode, image, text

SIZES = {"640 x 480": (640, 480), "1920 x 1080": (1920, 1080), "4000 x 3000": (4000, 3000), "8000 x 6000": (8000, 6000)}
LIMIT = '{"size": {"shortest_edge": 65536, "longest_edge": 1048576}}'
TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
# Room for a picture of 48 megapixels in each of two grants.
LANDING = 640 << 20


def cpu_ms(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_MS


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    vllm = Vllm("vllm-measure", flags=("--mm-processor-kwargs", LIMIT), env={"MEDIAGATE_LANDING_BYTES": str(LANDING)})
    gateways = {}
    try:
        vllm.ready()
        for resize in ("off", "auto"):
            flags = ["--frontend-decoding", "--nixl-lib-dir", str(nixl_lib_dir()), "--resize", resize]
            flags += ["--arena-bytes", "1GiB", "--landing-bytes", "160MiB"]
            gateways[resize] = Gateway(f"measure-{resize}", [vllm.url], *flags).ready()
            gateways[resize].wait_until_attached()
        print("| photograph | by | pushed | gateway CPU | worker CPU | same tokens |")
        print("| --- | --- | ---: | ---: | ---: | --- |", flush=True)
        for name, size in SIZES.items():
            warm_up, *uris = photographs(size, 1 + repetitions)
            ask(vllm, warm_up)
            before = cpu_ms(vllm.popen.pid)
            expected = [ask(vllm, uri) for uri in uris]
            theirs = (cpu_ms(vllm.popen.pid) - before) / repetitions
            print(f"| {name} | vLLM alone | | | {theirs:.0f} ms | |", flush=True)
            for resize, gateway in gateways.items():
                ask(gateway, warm_up)
                pushed, ours, theirs, said = measure(vllm, gateway, uris)
                same = "yes" if said == expected else "NO"
                line = (
                    f"| {name} | resize {resize} | {pushed / 1e6:.1f} MB | {ours:.0f} ms | {theirs:.0f} ms | {same} |"
                )
                print(line, flush=True)
    finally:
        for gateway in gateways.values():
            gateway.stop()
        vllm.stop()


def photographs(size: tuple[int, int], count: int) -> list[str]:
    """One photograph again and again, each time with another small square in its corner."""
    photograph = Image.open(io.BytesIO(PHOTO)).convert("RGB").resize(size, Image.Resampling.BICUBIC)
    uris = []
    for number in range(count):
        photograph.paste((number * 37 % 256, number * 91 % 256, 128), (0, 0, 32, 32))
        uris.append(data_uri(encode(photograph, "JPEG", quality=88), "JPEG"))
    return uris


def ask(server: Vllm | Gateway, uri: str) -> tuple[int, ...]:
    parts = [image(uri), text("Describe this image in detail.")]
    answer = chat.post(server.url, parts, max_tokens=4, cache_salt=f"{time.monotonic_ns()}")
    answer.raise_for_status()
    return tuple(answer.json()["choices"][0]["token_ids"])


def measure(vllm: Vllm, gateway: Gateway, uris: list[str]) -> tuple[float, float, float, list[tuple[int, ...]]]:
    """Bytes pushed and CPU of both sides in milliseconds, each a request, and what was said.

    The clock of a process ticks a hundred times a second, so it is read before and after all of them.
    """
    pushed = gateway.metrics().get("mediagate_pushed_bytes_total", 0.0)
    ours, theirs = cpu_ms(gateway.popen.pid), cpu_ms(vllm.popen.pid)
    said = [ask(gateway, uri) for uri in uris]
    ours, theirs = cpu_ms(gateway.popen.pid) - ours, cpu_ms(vllm.popen.pid) - theirs
    pushed = gateway.metrics().get("mediagate_pushed_bytes_total", 0.0) - pushed
    times = len(uris)
    return pushed / times, ours / times, theirs / times, said


if __name__ == "__main__":
    harness.LOGS.mkdir(parents=True, exist_ok=True)
    main()
