"""How long a push takes until its copy is handed over, what of that is copying and hashing, and what idling costs.

Not a test: `python tests/measure_landing.py`, on a quiet machine, about 40 seconds. One process plays the gateway and
the API process; the lander is the real child process, NIXL and UCX are real.
"""

import asyncio
import base64
import glob
import json
import secrets
import statistics
import threading
import time

import numpy as np
from gateway import Attached, Gateway, picture

from mediagate_vllm import macs
from mediagate_vllm.content import content_hash
from mediagate_vllm.errors import Refused
from mediagate_vllm.landing import Landing
from mediagate_vllm.settings import Settings
from mediagate_vllm.supervisor import Supervisor

SHAPES = [(48, 64), (480, 640), (1080, 1920), (2048, 2048)]
ROUNDS = 100
IDLE_SECONDS = 15


def report(what: str, seconds: list[float]) -> None:
    micros = sorted(s * 1e6 for s in seconds)
    p90 = micros[len(micros) * 9 // 10]
    print(f"{what:48s} min {micros[0]:6.0f}  median {statistics.median(micros):6.0f}  p90 {p90:6.0f} us", flush=True)


def cpu_seconds(pid: int) -> float:
    return sum(int(open(f).read().split()[0]) for f in glob.glob(f"/proc/{pid}/task/*/schedstat")) / 1e9


async def attach(gateway: Gateway, landing: Landing) -> Attached:
    """Through the door without HTTP."""
    nonce = secrets.token_hex(32)
    said = json.dumps({"protocol": 2, "gateway": gateway.incarnation, "nonce": nonce})
    hello = json.loads((await landing.call("/mediagate/attach/hello", said, "", is_local=True)).body)
    body = gateway.attach_body(nonce, hello, want_bytes=16 << 20)
    mac = macs.mac(gateway.secret_key, "mediagate gateway v1", "/mediagate/attach", body)
    answer = json.loads((await landing.call("/mediagate/attach", body, mac, is_local=True)).body)
    gateway.agent.add_peer(base64.b64decode(answer["metadata"]))
    key = macs.grant_key(gateway.secret_key, gateway.incarnation, nonce, hello["worker"], hello["nonce"])
    attached = Attached(gateway, answer, key)
    attached.write(np.zeros(1, np.uint8))
    return attached


async def measure_claim(landing: Landing) -> None:
    refused = f"mediagate://{'0' * 16}/1/1/0/48x64/{'0' * 16}/{'0' * 64}/1/100/{'0' * 32}"
    times = []
    for _ in range(20 * ROUNDS):
        begun = time.perf_counter()
        try:
            await landing.take(refused)
        except Refused:
            times.append(time.perf_counter() - begun)
    report("claim and answer, nothing else", times)


async def measure_push(landing: Landing, attached: Attached, height: int, width: int) -> None:
    pixels = picture(1, height, width)
    alone, copies, hashes, landed, pushed = [], [], [], [], []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        attached.write(pixels)
        alone.append(time.perf_counter() - begun)

        begun = time.perf_counter()
        copy = pixels.reshape(-1).copy()
        copies.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        content_hash(copy, height, width)
        hashes.append(time.perf_counter() - begun)

        generation = attached.push(pixels)
        ref = attached.reference(pixels, generation)
        await asyncio.sleep(0.004)
        begun = time.perf_counter()
        await landing.take(ref)
        landed.append(time.perf_counter() - begun)

        ref = attached.reference(pixels, attached.next_generation())
        taking = asyncio.ensure_future(landing.take(ref))
        await asyncio.sleep(0.003)
        begun = time.perf_counter()
        pushing = threading.Thread(target=attached.push, args=(pixels, 0, attached.generation))
        pushing.start()
        await taking
        pushed.append(time.perf_counter() - begun)
        pushing.join()
    name = f"{height}x{width} ({pixels.nbytes / 1e6:.1f} MB)"
    report(f"{name}: WRITE alone, with filling its source", alone)
    report(f"{name}: copy", copies)
    report(f"{name}: hash", hashes)
    report(f"{name}: claim of what has landed", landed)
    report(f"{name}: push begun to copy handed over", pushed)


async def measure_cpu(landing: Landing, attached: Attached, pid: int) -> None:
    await asyncio.sleep(1)
    before = cpu_seconds(pid)
    await asyncio.sleep(IDLE_SECONDS)
    print(f"lander idle: {(cpu_seconds(pid) - before) / IDLE_SECONDS:.2%} of a core")
    ref = attached.reference(picture(1), attached.next_generation(), wait_ms=4000)
    waiting = asyncio.ensure_future(landing.take(ref))
    await asyncio.sleep(0.5)
    before = cpu_seconds(pid)
    await asyncio.sleep(3)
    print(f"lander while a claim waits: {(cpu_seconds(pid) - before) / 3:.2%} of a core")
    await asyncio.gather(waiting, return_exceptions=True)


async def main() -> None:
    name = f"\0mediagate/measure/{secrets.token_hex(8)}"
    supervisor, landing = Supervisor(Settings(lease_seconds=3600), name, {}), Landing(name)
    supervisor.start()
    landing.start()
    await landing.ready()
    attached = await attach(Gateway("http://no.server"), landing)
    await measure_claim(landing)
    for height, width in SHAPES:
        await measure_push(landing, attached, height, width)
    assert supervisor.pid is not None
    await measure_cpu(landing, attached, supervisor.pid)
    await landing.stop()
    await supervisor.stop()


asyncio.run(main())
