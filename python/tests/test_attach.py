"""Who may attach, over HTTP on a running stand-in: the handshake, its replays, and what is refused at the door."""

import base64
import json
import os
import secrets
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from gateway import Attached, Gateway, picture
from starlette.requests import Request

from mediagate_vllm import macs
from mediagate_vllm.content import content_hash
from mediagate_vllm.errors import Refused
from mediagate_vllm.nonces import LIFETIME_SECONDS, Nonces
from mediagate_vllm.routes import _is_local


def hello(gateway: Gateway, **changes: object) -> tuple[int, dict]:
    fields = {"protocol": 2, "gateway": gateway.incarnation, "nonce": "0" * 64, **changes}
    return gateway.post("/mediagate/attach/hello", fields)


def test_answer_says_what_the_worker_is(gateway: Gateway):
    answer = gateway.attach(want_bytes=2 << 20).answer
    assert answer["grant"]["bytes"] == 2 << 20
    assert answer["grant"]["address"] % 4096 == 0
    assert answer["models"] == ["standin"]
    assert answer["api_processes"] == 1
    assert answer["processor_cache"] == {"kind": "lru", "bytes": 4 << 30}
    assert answer["engine"]["name"] == "standin"


def test_errors_have_the_shape_of_vllm(gateway: Gateway):
    status, answer = hello(gateway, protocol=1)
    assert status == 400
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["code"] == 400
    assert answer["error"]["message"].startswith("mediagate bad: protocol")


def test_replayed_attach_is_denied(gateway: Gateway):
    attached = gateway.attach()
    answer = gateway.send_attach(gateway.last_attach)
    assert answer.status_code == 403
    assert attached.renew()[0] == 200


def test_wrong_secret_is_denied(gateway: Gateway):
    other = Gateway(gateway.url, b"another secret of the tests")
    nonce = secrets.token_hex(32)
    answer = hello(other, nonce=nonce)[1]
    said = (other.incarnation, nonce, answer["worker"], answer["nonce"])
    assert not macs.same(macs.mac(other.secret_key, "mediagate worker v1", *said), answer["proof"])
    assert other.send_attach(other.attach_body(nonce, answer)).status_code == 403


def test_nonce_belongs_to_its_hello(gateway: Gateway):
    nonce, other = secrets.token_hex(32), secrets.token_hex(32)
    answer = gateway.hello(nonce)
    assert gateway.send_attach(gateway.attach_body(other, answer)).status_code == 403
    forged = {**answer, "nonce": answer["nonce"][:-1] + ("0" if answer["nonce"][-1] != "0" else "1")}
    assert gateway.send_attach(gateway.attach_body(nonce, forged)).status_code == 403
    assert gateway.send_attach(gateway.attach_body(nonce, answer)).status_code == 200


def test_nonces_expire_and_are_used_once():
    now = [100.0]
    nonces = Nonces(lambda: now[0])
    made = nonces.make("g", "n")
    nonces.use(made, "g", "n")
    for wrong in (made, "", "0" * 64, made.upper(), "ä" * 64):
        with pytest.raises(Refused):
            nonces.use(wrong, "g", "n")
    late = nonces.make("g", "n")
    now[0] += LIFETIME_SECONDS + 0.01
    with pytest.raises(Refused, match="expired"):
        nonces.use(late, "g", "n")


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"protocol": 1}, 400),
        ({"gateway": "x"}, 400),
        ({"metadata": "!"}, 400),
        ({"metadata": "AAAA"}, 400),
        ({"metadata": ""}, 400),
        ({"agent": "someone else"}, 400),
        ({"agent": "someone-else"}, 400),
        ({"want_bytes": -1}, 400),
        ({"want_bytes": "1"}, 400),
        ({"worker": "0" * 16}, 410),
    ],
)
def test_malformed_attach(gateway: Gateway, changes: dict, status: int):
    nonce = secrets.token_hex(32)
    answer = gateway.send_attach(gateway.attach_body(nonce, gateway.hello(nonce), **changes))
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize("body", ["", "[]", "1", "{", '{"protocol":1', "[" * 50_000, '"' + "x" * 60_000 + '"'])
def test_bodies_that_are_none(gateway: Gateway, body: str):
    assert gateway.post("/mediagate/attach/hello", body)[0] == 400
    assert gateway.post("/mediagate/renew", body)[0] == 400
    assert gateway.post("/mediagate/attach", body)[0] == 403  # not authentic: not looked at


def test_http_that_is_refused(gateway: Gateway):
    fields = json.dumps({"protocol": 2, "gateway": gateway.incarnation, "nonce": "0" * 64})
    path = "/mediagate/attach/hello"
    assert gateway.post(path, fields, content_type="text/plain")[0] == 400
    assert gateway.post(path, fields, content_type="application/json; charset=utf-8")[0] == 200
    assert gateway.post(path, fields[:-1] + " " * (64 << 10) + "}")[0] == 400
    assert gateway.http.get(path).status_code == 405
    undecodable = gateway.http.post(path, content=b"\xff", headers={"content-type": "application/json"})
    assert undecodable.status_code == 400


def test_calls_need_the_grants_key(gateway: Gateway):
    attached, other = gateway.attach(), Gateway(gateway.url, b"a shared secret of the tests").attach()
    attached_key, attached.key = attached.key, other.key
    assert attached.renew()[0] == 403
    assert attached.void(1)[0] == 403
    assert attached.detach()[0] == 403
    attached.key = attached_key
    assert attached.renew()[0] == 200
    assert attached.renew(seq=attached.seq)[0] == 403
    assert attached.call("/mediagate/renew", seq="2")[0] == 400
    assert attached.void(0)[0] == 400
    assert attached.call("/mediagate/void", generations=[True])[0] == 400
    assert attached.detach() == (200, {"detached": True})
    assert attached.renew()[0] == 410
    assert attached.detach()[0] == 410
    other.detach()


def test_mac_of_one_call_is_not_that_of_another(gateway: Gateway):
    attached = gateway.attach()
    body = json.dumps({"worker": attached.worker, "grant": attached.id, "seq": 9, "generations": []})
    mac = macs.mac(attached.key, "mediagate call v1", "/mediagate/renew", body)
    assert gateway.post("/mediagate/detach", body, x_mediagate_mac=mac)[0] == 403
    assert gateway.post("/mediagate/renew", body, x_mediagate_mac=mac)[0] == 200


def test_attaching_again_gets_a_new_grant(gateway: Gateway):
    pixels, first = picture(1), gateway.attach()
    second = gateway.attach()
    assert first.renew()[0] == 410
    assert gateway.see(first.reference(pixels, 1))[0] == 410
    generation = second.push(pixels)
    assert gateway.see(second.reference(pixels, generation))[0] == 200
    assert second.released(generation)


def test_without_a_key_only_this_machine_attaches(start):
    worker = start().wait()
    worker.wait_for_lander()
    gateway = Gateway(worker.url)
    gateway.attach().detach()
    for header in ("forwarded", "x_forwarded_for", "x_real_ip", "via", "origin"):
        fields = {"protocol": 2, "gateway": gateway.incarnation, "nonce": "0" * 64}
        assert gateway.post("/mediagate/attach/hello", fields, **{header: "127.0.0.1"})[0] == 403


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("0.0.0.0", False),
        ("localhost", False),
        ("", False),
        (None, False),
    ],
)
def test_which_peers_are_on_this_machine(host: str | None, is_local: bool):
    peer = None if host is None else (host, 1)
    assert _is_local(Request({"type": "http", "headers": [], "client": peer})) is is_local


def probe(attached: Attached, fields: object, key: bytes | None = None) -> tuple[int, dict]:
    body = fields if isinstance(fields, str) else json.dumps(fields)
    tag = macs.mac(key or attached.key, "mediagate probe v1", blake3(body.encode()).hexdigest())
    headers = {"content-type": "application/json", "x-mediagate-mac": tag}
    answer = attached.gateway.http.post("/mediagate/probe", content=body, headers=headers)
    return answer.status_code, answer.json()


def inline(pixels: np.ndarray) -> str:
    height, width, _ = pixels.shape
    file = b"P6\n%d %d\n255\n" % (width, height) + pixels.tobytes()
    return "data:image/x-portable-pixmap;base64," + base64.b64encode(file).decode()


def test_a_probe_takes_a_picture_either_way(gateway: Gateway):
    attached, pixels = gateway.attach(), picture(1, 512, 512)
    seen = {"content_hash": content_hash(pixels.reshape(-1), 512, 512)}
    ours = {"worker": attached.worker, "grant": attached.id}
    generation = attached.push(pixels)
    assert probe(attached, {**ours, "url": attached.reference(pixels, generation)}) == (200, seen)
    assert attached.released(generation)
    assert probe(attached, {**ours, "url": inline(pixels)}) == (200, seen)


def test_a_probe_is_for_those_who_were_granted_memory(gateway: Gateway):
    attached, pixels = gateway.attach(), picture(2)
    ours = {"worker": attached.worker, "grant": attached.id, "url": inline(pixels)}
    assert probe(attached, ours, bytes(32))[0] == 403
    assert probe(attached, {**ours, "grant": attached.id + 1000})[0] == 410
    assert probe(attached, {**ours, "worker": "0" * 16})[0] == 410
    for bad in ({**ours, "url": "data:,x"}, {**ours, "url": ours["url"][:-4]}, {**ours, "url": 1}, {}, [], "{"):
        assert probe(attached, bad)[0] == 400, bad
    large = {**ours, "url": inline(picture(3, 1024, 1024))}
    assert probe(attached, large)[0] == 400


def test_the_answer_says_where_the_lander_runs_to_neighbours_only(gateway: Gateway):
    attached = gateway.attach()
    where = attached.answer["whereabouts"]
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert where["host"] == macs.mac(attached.key, "mediagate host v1", boot_id)
    assert where["uid"] == os.geteuid()
    assert where["pid_namespace"] == os.stat("/proc/self/ns/pid").st_ino
    assert "mediagate-landr" in Path(f"/proc/{where['pid']}/comm").read_text()
