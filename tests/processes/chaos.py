"""Chaos: kills and stops gateways, workers and landers at random under load, and checks what comes of it.

    python tests/processes/chaos.py [--seconds 600] [--seed N] [--tls LIST]

Two gateways push into two stand-in workers, whose landing memory is enough for one gateway each: the other gets its
range when a lease is lost, so that a gateway that was stopped wakes up and goes on writing into what is another's by
now. Clients ask both gateways without a pause, with pictures that together fill the landing memory.

Held against it:
- every answer of 200 tells the sha256 of the very pixels that were sent, of each image in its place;
- everything else is a 502 or 503 (or a connection that died with its process), and all within the deadline;
- in the end, with nothing under way, no slot and no source is in use anywhere, everything heals without an operator,
  and a picture as large as the whole landing memory (with its mark) can be pushed to each worker.

What is stopped for a moment of less than a lease stands for a lander that looks late.
"""

import argparse
import base64
import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import httpx
import numpy as np
from house import Gateway, Worker, sights

MIB = 1 << 20
LANDING_BYTES = 3 * MIB
LEASE_SECONDS, GRACE_SECONDS = 1.0, 0.5
LONGEST_STOP_SECONDS = 4.0
DEADLINE_SECONDS = 60.0
HEAL_SECONDS = 180.0
CLIENTS = 6
PICTURES = 40


class Picture:
    """Noise; of bytes that are not below `least`."""

    def __init__(self, rng: np.random.Generator, height: int, width: int, least: int = 0) -> None:
        pixels = rng.integers(least, 256, (height, width, 3), dtype=np.uint8).tobytes()
        self.sha256 = hashlib.sha256(pixels).hexdigest()
        file = b"P6\n%d %d\n255\n" % (width, height) + pixels
        url = "data:image/x-portable-pixmap;base64," + base64.b64encode(file).decode()
        self.part = json.dumps({"type": "image_url", "image_url": {"url": url}})

    def is_made_of(self, pixels: np.ndarray) -> bool:
        return hashlib.sha256(pixels).hexdigest() == self.sha256


def body(pictures: list[Picture]) -> str:
    parts = ",".join(picture.part for picture in pictures)
    return '{"model":"standin","messages":[{"role":"user","content":[' + parts + "]}]}"


class Chaos:
    def __init__(self, seconds: float, seed: int, tls: str | None) -> None:
        self.seconds = seconds
        self.rng = random.Random(seed)
        noise = np.random.default_rng(seed)
        sides = [(self.rng.randint(100, 700), self.rng.randint(100, 700)) for _ in range(PICTURES)]
        self.pictures = [Picture(noise, *side) for side in sides]
        # With its mark as large as the landing memory: it fits only if every page of it is free.
        self.largest = [Picture(noise, 1023, 1024) for _ in range(2)]
        env = {"UCX_TLS": tls} if tls else {}
        flags = [
            "--landing-bytes", str(LANDING_BYTES), "--grant-bytes", str(LANDING_BYTES), "--cache-bytes", str(8 * MIB),
            "--lease-seconds", str(LEASE_SECONDS), "--grace-seconds", str(GRACE_SECONDS), "--log-level", "warning",
        ]  # fmt: skip
        self.workers = [Worker(f"chaos-worker-{n}", *flags, env=env) for n in range(2)]
        for worker in self.workers:
            worker.wait("/health")
        urls = [worker.url for worker in self.workers]
        flags = [
            "--arena-bytes", "96MiB", "--media-max-pixels", "2000000", "--health-interval-ms", "100",
            "--push-timeout-ms", "1500", "--inline-where-faster=false", "--log", "info,mediagate=debug",
        ]  # fmt: skip
        self.gateways = [Gateway(f"chaos-gateway-{n}", urls, *flags, env=env) for n in range(2)]
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.problems: list[str] = []
        self.lock = threading.Lock()
        self.over = threading.Event()

    # Load

    def client(self, number: int) -> None:
        rng = random.Random(number)
        with httpx.Client(timeout=DEADLINE_SECONDS) as http:
            while not self.over.is_set():
                chosen = rng.sample(self.pictures, rng.choice([1, 1, 2, 3]))
                self.ask(http, rng.choice(self.gateways), chosen)

    def ask(self, http: httpx.Client, gateway: Gateway, chosen: list[Picture]) -> list[str]:
        """How the pictures travelled, if they arrived."""
        begun = time.monotonic()
        transfers: list[str] = []
        try:
            answer = http.post(
                f"{gateway.url}/v1/chat/completions", content=body(chosen), headers={"content-type": "application/json"}
            )
            outcome = str(answer.status_code)
            if answer.status_code == 200:
                seen = sights(answer)
                if [image["rgb_sha256"] for image in seen] != [picture.sha256 for picture in chosen]:
                    self.problem(f"{gateway.name}: other pixels than were sent: {seen}")
                transfers = [image["transfer"] for image in seen]
            elif answer.status_code not in (502, 503):
                self.problem(f"{gateway.name}: {answer.status_code} {answer.text[:300]}")
        except httpx.TimeoutException:
            outcome = "timeout"
            self.problem(f"{gateway.name}: no answer within {DEADLINE_SECONDS} s")
        except httpx.TransportError:
            outcome = "broken"  # its gateway was killed
            time.sleep(0.05)
        took = time.monotonic() - begun
        with self.lock:
            self.counts[outcome] += 1
            self.counts.update(transfers)
            self.counts["slowest_ms"] = max(self.counts["slowest_ms"], int(took * 1000))
        return transfers

    def problem(self, text: str) -> None:
        with self.lock:
            self.problems.append(text)
        print(f"WRONG: {text}", file=sys.stderr, flush=True)

    # Faults

    def monkey(self) -> None:
        end = time.monotonic() + self.seconds
        faults: list[tuple[Callable[[], None], int]] = [
            (self.kill_worker, 2),
            (self.kill_lander, 3),
            (self.kill_gateway, 2),
            (self.stop_worker, 2),
            (self.stop_lander, 3),
            (self.stop_gateway, 3),
            (self.delay_lander, 4),
        ]
        while time.monotonic() < end and not self.problems:
            time.sleep(self.rng.uniform(0.1, 1.0))
            fault = self.rng.choices([f for f, _ in faults], [weight for _, weight in faults])[0]
            self.faults[fault.__name__] += 1
            fault()

    def kill_worker(self) -> None:
        worker = self.rng.choice(self.workers)
        worker.kill()
        time.sleep(self.rng.uniform(0, 0.5))
        worker.start()

    def kill_lander(self) -> None:
        self.signal(self.rng.choice(self.workers).lander(), signal.SIGKILL)

    def kill_gateway(self) -> None:
        gateway = self.rng.choice(self.gateways)
        gateway.kill()
        time.sleep(self.rng.uniform(0, 0.5))
        gateway.start()

    def stop_worker(self) -> None:
        self.stop(self.rng.choice(self.workers).pid, LONGEST_STOP_SECONDS)

    def stop_lander(self) -> None:
        self.stop(self.rng.choice(self.workers).lander(), LONGEST_STOP_SECONDS)

    def stop_gateway(self) -> None:
        self.stop(self.rng.choice(self.gateways).pid, LONGEST_STOP_SECONDS)

    def delay_lander(self) -> None:
        for _ in range(self.rng.randint(1, 5)):
            self.stop(self.rng.choice(self.workers).lander(), LEASE_SECONDS / 4)
            time.sleep(self.rng.uniform(0, 0.02))

    def stop(self, pid: int | None, longest: float) -> None:
        self.signal(pid, signal.SIGSTOP)
        time.sleep(self.rng.uniform(0.01, longest))
        self.signal(pid, signal.SIGCONT)

    @staticmethod
    def signal(pid: int | None, number: int) -> None:
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    # The end

    def run(self) -> int:
        for gateway in self.gateways:
            gateway.wait("/ready")
        clients = [threading.Thread(target=self.client, args=(n,), daemon=True) for n in range(CLIENTS)]
        for client in clients:
            client.start()
        self.monkey()
        for worker in self.workers:
            worker.wait("/health")
        self.over.set()
        for client in clients:
            client.join(2 * DEADLINE_SECONDS)
        if any(client.is_alive() for client in clients):
            self.problem("a client still waits")
        if not self.problems:
            self.all_is_well()
        print(json.dumps({"outcomes": self.counts, "faults": self.faults, "wrong": len(self.problems)}), flush=True)
        for program in (*self.gateways, *self.workers):
            program.end()
        return 1 if self.problems else 0

    def all_is_well(self) -> None:
        for gateway in self.gateways:
            self.heals(f"{gateway.name}: slots or sources are still in use", lambda g=gateway: not _in_use(g))
        if not self.counts["push"]:
            self.problem("nothing was pushed at all")
        # One gateway leaves, so that there is landing memory for the other.
        self.gateways.pop().end()
        gateway = self.gateways[0]
        workers = len(self.workers)
        self.heals("not attached again", lambda: gateway.total("mediagate_worker_attached") == workers)
        for worker in self.workers:
            others = [other for other in self.workers if other is not worker]
            for other in others:
                other.kill()
            self.heals(f"the whole of {worker.name} cannot be pushed to", lambda: self.pushes_all(gateway))
            for other in others:
                other.start()
                other.wait("/health")
            self.heals("not attached again", lambda: gateway.total("mediagate_worker_attached") == workers)
        self.heals(f"{gateway.name}: slots or sources are in use", lambda: not _in_use(gateway))

    def pushes_all(self, gateway: Gateway) -> bool:
        # By uuid, if it was there before; another one pushes it out.
        with httpx.Client(timeout=DEADLINE_SECONDS) as http:
            return "push" in [way for picture in self.largest for way in self.ask(http, gateway, [picture])]

    def heals(self, otherwise: str, is_well: Callable[[], bool]) -> None:
        deadline = time.monotonic() + HEAL_SECONDS
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if is_well():
                    return
            if time.monotonic() > deadline:
                self.problem(otherwise)
                return
            time.sleep(0.1)


def _in_use(gateway: Gateway) -> float:
    return gateway.total("mediagate_landing_open") + gateway.total("mediagate_landing_pinned_bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--tls", help="UCX_TLS of all processes, such as tcp,self [default: unset]")
    args = parser.parse_args()
    print(f"chaos for {args.seconds:.0f} s, seed {args.seed}, UCX_TLS {args.tls or 'unset'}", flush=True)
    return Chaos(args.seconds, args.seed, args.tls).run()


if __name__ == "__main__":
    sys.exit(main())
