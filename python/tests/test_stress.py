"""Many requests at once, each with its misfortune: who is answered saw the right pixels, and every slot comes back."""

import hashlib
import json
import random
import threading
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import httpx
import numpy as np
from gateway import Gateway, picture

SECRET = b"a shared secret of the tests"
SLOT_BYTES = 256 << 10
SLOTS = 12
ROUNDS = 400
PICTURES = [picture(n, 20 + 13 * n, 30 + 7 * n) for n in range(12)]
SHA256 = [hashlib.sha256(p.tobytes()).hexdigest() for p in PICTURES]


class Traffic:
    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.attached = gateway.attach(want_bytes=SLOTS * SLOT_BYTES)
        self.client = httpx.Client(base_url=gateway.url, limits=httpx.Limits(keepalive_expiry=1))
        self.nixl = threading.Lock()  # the test's agent is not for several threads
        self.free = list(range(SLOTS))
        self.outcomes: Counter[str] = Counter()

    def send(self, seed: int, slot: int) -> None:
        rng = random.Random(seed)
        number, fate = rng.randrange(len(PICTURES)), rng.choice(["good", "good", "twice", "wrong", "never", "leaves"])
        pixels, offset = PICTURES[number], slot * SLOT_BYTES
        with self.nixl:
            generation = self.attached.next_generation()
        uses = 2 if fate == "twice" else 1
        wait_ms = 50 if fate == "never" else 60_000
        ref = self.attached.reference(pixels, generation, offset, uses=uses, wait_ms=wait_ms)
        early = rng.random() < 0.5
        landing = threading.Timer(rng.random() * 0.02, self.land, (fate, pixels, offset, generation))
        if early:
            landing.run()
        else:
            landing.start()
        status, seen = self.ask([ref] * uses, leaves_after=rng.random() * 0.02 if fate == "leaves" else None)
        self.outcomes[f"{fate} {status}"] += 1
        if status == 200:
            assert [s["rgb_sha256"] for s in seen] == [SHA256[number]] * uses
        if not early:
            landing.join()  # as in the gateway: a slot is not given up while its transfer is under way
        if status != 200:
            assert self.void(generation)
        else:
            with self.nixl:
                assert self.attached.released(generation, uses)
        self.free.append(slot)

    def land(self, fate: str, pixels: np.ndarray, offset: int, generation: int) -> None:
        with self.nixl:
            if fate == "never":
                self.attached.write(pixels, offset)
            else:
                self.attached.push(255 - pixels if fate == "wrong" else pixels, offset, generation)

    def void(self, generation: int) -> bool:
        with self.nixl:
            return self.attached.void(generation) == (200, {"void": [generation]})

    def ask(self, urls: list[str], leaves_after: float | None) -> tuple[int, list[dict]]:
        parts = [{"type": "image_url", "image_url": {"url": u}} for u in urls]
        body = {"messages": [{"role": "user", "content": parts}]}
        try:
            answer = self.client.post(
                "/v1/chat/completions",
                json=body,
                timeout=120 if leaves_after is None else httpx.Timeout(120, read=max(leaves_after, 0.001)),
            )
        except httpx.ReadTimeout:
            return 0, []
        if answer.status_code != 200:
            return answer.status_code, []
        return 200, json.loads(answer.json()["choices"][0]["message"]["content"])["images"]


def test_every_slot_comes_back(worker):
    traffic = Traffic(Gateway(worker.url, SECRET))
    with ThreadPoolExecutor(SLOTS) as pool:
        sent = []
        for seed in range(ROUNDS):
            if seed % 50 == 0:
                with traffic.nixl:
                    assert traffic.attached.renew()[0] == 200
            while not traffic.free:
                wait([s for s in sent if not s.done()], timeout=10, return_when=FIRST_COMPLETED)
                for failed in [s for s in sent if s.done() and s.exception()]:
                    failed.result()
            sent.append(pool.submit(traffic.send, seed, traffic.free.pop(0)))
        for each in sent:
            each.result()
    assert sorted(traffic.free) == list(range(SLOTS))
    allowed = {"good 200", "twice 200", "wrong 409", "never 503", "leaves 0", "leaves 200"}
    assert set(traffic.outcomes) <= allowed, traffic.outcomes
    assert traffic.attached.detach()[0] == 200
