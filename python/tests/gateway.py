"""A gateway for tests: its own NIXL agent, and the gateway's side of docs/PROTOCOL.md in the plainest words."""

import base64
import contextlib
import json
import secrets
import time
from typing import ClassVar

import httpx
import numpy as np

from mediagate_vllm import macs
from mediagate_vllm.agent import Agent
from mediagate_vllm.content import content_hash
from mediagate_vllm.marks import behind, mark
from mediagate_vllm.references import SCHEME, reference_mac

ARENA_BYTES = 16 << 20
MEDIA_ID = "c" * 64


def picture(seed: int, height: int = 48, width: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


class Attached:
    """One grant, as the gateway that has it sees it."""

    def __init__(self, gateway: "Gateway", answer: dict, key: bytes) -> None:
        self.gateway = gateway
        self.answer = answer
        self.key = key
        self.worker: str = answer["worker"]
        self.id: int = answer["grant"]["id"]
        self.address: int = answer["grant"]["address"]
        self.bytes: int = answer["grant"]["bytes"]
        self.generation = 0
        self.seq = 0

    def next_generation(self) -> int:
        self.generation += 1
        return self.generation

    def write(self, data: np.ndarray, offset: int = 0) -> None:
        self.gateway.write(data, self.address + offset, self.answer["agent"])

    def write_mark(self, length: int, generation: int, offset: int = 0) -> None:
        text = mark(self.key, self.id, generation, offset, length)
        self.write(np.frombuffer(text, np.uint8), offset + behind(length))

    def push(self, pixels: np.ndarray, offset: int = 0, generation: int | None = None) -> int:
        """WRITE pixels, then their mark; the generation."""
        generation = generation or self.next_generation()
        self.write(pixels, offset)
        self.write_mark(pixels.nbytes, generation, offset)
        return generation

    def reference(self, pixels: np.ndarray, generation: int, offset: int = 0, **changes: object) -> str:
        height, width, _ = pixels.shape
        fields: dict[str, object] = {
            "worker": self.worker,
            "grant": self.id,
            "generation": generation,
            "offset": offset,
            "height": height,
            "width": width,
            "content_hash": content_hash(pixels.reshape(-1), height, width),
            "media_id": MEDIA_ID,
            "uses": 1,
            "wait_ms": 60_000,
            **changes,
        }
        text = (
            "{worker}/{grant}/{generation}/{offset}/{height}x{width}/{content_hash}/{media_id}/{uses}/{wait_ms}"
        ).format(**fields)
        return f"{SCHEME}{text}/{reference_mac(self.key, text)}"

    def released(self, generation: int, uses: int = 1, seconds: float = 60.0) -> bool:
        """Whether the worker has told (or tells within `seconds`) that so many uses are over."""
        return self.gateway.heard(f"F {self.id} {generation}", uses, seconds)

    def call(self, path: str, **fields: object) -> tuple[int, dict]:
        return self.gateway.post(path, {"worker": self.worker, "grant": self.id, **fields}, self.key)

    def settle(self) -> None:
        """Until the worker and its lander have seen to what reached the worker before: each does one thing after the
        other, and none of it takes more turns than this."""
        for _ in range(10):
            assert self.renew()[0] == 200

    def renew(self, seq: int | None = None) -> tuple[int, dict]:
        self.seq = self.seq + 1 if seq is None else seq
        return self.call("/mediagate/renew", seq=self.seq)

    def void(self, *generations: int) -> tuple[int, dict]:
        return self.call("/mediagate/void", generations=list(generations))

    def detach(self) -> tuple[int, dict]:
        return self.call("/mediagate/detach")


class Gateway:
    made: ClassVar[list["Gateway"]] = []

    def __init__(self, url: str, secret: bytes = b"") -> None:
        self.made.append(self)
        self.grants: list[Attached] = []
        self.url = url
        self.incarnation = secrets.token_hex(8)
        self.secret_key = macs.secret_key(secret)
        self.agent = Agent(f"gateway-{self.incarnation}", progress_delay_us=1000)
        self.arena = np.zeros(ARENA_BYTES, np.uint8)
        self.agent.register(self.arena.ctypes.data, ARENA_BYTES)
        self.metadata = self.agent.metadata(self.arena.ctypes.data, ARENA_BYTES)
        # What uvicorn may be closing just now, after five idle seconds, is not used again.
        self.http = httpx.Client(base_url=url, timeout=120, limits=httpx.Limits(keepalive_expiry=1))
        self.notes: list[str] = []
        self.last_attach = ""

    def close(self) -> None:
        """Gives back what it was granted: whoever comes next must not wait until a lease ends."""
        for grant in self.grants:
            with contextlib.suppress(httpx.HTTPError):
                grant.detach()
        self.http.close()

    # HTTP

    def post(self, path: str, fields: dict | str, key: bytes | None = None, **headers: str) -> tuple[int, dict]:
        body = fields if isinstance(fields, str) else json.dumps(fields)
        mac = {"x-mediagate-mac": macs.mac(key, "mediagate call v1", path, body)} if key else {}
        sent = {"content-type": "application/json", **mac, **{k.replace("_", "-"): v for k, v in headers.items()}}
        answer = self.http.post(path, content=body, headers=sent)
        return answer.status_code, answer.json()

    def hello(self, nonce: str) -> dict:
        fields = {"protocol": 2, "gateway": self.incarnation, "nonce": nonce}
        status, answer = self.post("/mediagate/attach/hello", fields)
        assert status == 200, answer
        proof = macs.mac(
            self.secret_key, "mediagate worker v1", self.incarnation, nonce, answer["worker"], answer["nonce"]
        )
        assert macs.same(proof, answer["proof"])
        return answer

    def attach_body(self, nonce: str, hello: dict, **changes: object) -> str:
        return json.dumps({
            "protocol": 2,
            "gateway": self.incarnation,
            "nonce": nonce,
            "worker": hello["worker"],
            "worker_nonce": hello["nonce"],
            "agent": self.agent.name,
            "metadata": base64.b64encode(self.metadata).decode(),
            "want_bytes": 4 << 20,
            **changes,
        })  # fmt: skip

    def send_attach(self, body: str) -> httpx.Response:
        self.last_attach = body
        mac = macs.mac(self.secret_key, "mediagate gateway v1", "/mediagate/attach", body)
        headers = {"content-type": "application/json", "x-mediagate-mac": mac}
        return self.http.post("/mediagate/attach", content=body, headers=headers)

    def attach(self, **changes: object) -> Attached:
        nonce = secrets.token_hex(32)
        hello = self.hello(nonce)
        answer = self.send_attach(self.attach_body(nonce, hello, **changes))
        assert answer.status_code == 200, answer.text
        key = macs.grant_key(self.secret_key, self.incarnation, nonce, hello["worker"], hello["nonce"])
        assert macs.same(macs.mac(key, "mediagate answer v1", answer.text), answer.headers["x-mediagate-mac"])
        fields = answer.json()
        self.agent.add_peer(base64.b64decode(fields["metadata"]))
        attached = Attached(self, fields, key)
        self.grants.append(attached)
        attached.write(np.zeros(1, np.uint8))
        return attached

    def chat(self, *parts: dict, **fields: object) -> tuple[int, dict]:
        body = {"model": "standin", "messages": [{"role": "user", "content": list(parts)}], **fields}
        answer = self.http.post("/v1/chat/completions", json=body)
        return answer.status_code, answer.json()

    def see(self, *urls: str) -> tuple[int, list[dict] | str]:
        """The stand-in's facts about these images, or its error's message."""
        status, answer = self.chat(*({"type": "image_url", "image_url": {"url": u}} for u in urls))
        if status != 200:
            return status, answer["error"]["message"]
        return status, json.loads(answer["choices"][0]["message"]["content"])["images"]

    # NIXL

    def write(self, data: np.ndarray, address: int, peer: str) -> None:
        flat = data.reshape(-1)
        self.arena[: flat.size] = flat
        b, raw = self.agent._b, self.agent._raw
        local = b.nixlXferDList(b.DRAM_SEG, [(self.arena.ctypes.data, flat.size, 0)])
        remote = b.nixlXferDList(b.DRAM_SEG, [(address, flat.size, 0)])
        request = raw.createXferReq(b.NIXL_WRITE, local, remote, peer, "")
        state = raw.postXferReq(request)
        deadline = time.monotonic() + 60
        while state == b.NIXL_IN_PROG:
            assert time.monotonic() < deadline, "the transfer hangs"
            state = raw.getXferStatus(request)
        raw.releaseXferReq(request)

    def notify(self, peer: str, text: str) -> None:
        self.agent.notify(peer, text)

    def heard(self, text: str, times: int, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            for texts in self.agent.notifications().values():
                self.notes += [t.decode() for t in texts]
            if self.notes.count(text) >= times:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
