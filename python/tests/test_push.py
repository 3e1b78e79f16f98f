"""Pushes over real NIXL, from this process into a stand-in's lander: what is served, what is refused, what is freed."""

import hashlib
import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import Worker
from gateway import MEDIA_ID, Attached, Gateway, picture
from programs import PATIENCE_SECONDS, unacknowledged, until

from mediagate_vllm.content import content_hash
from mediagate_vllm.marks import behind, mark


@pytest.fixture
def attached(gateway: Gateway):
    grant = gateway.attach()
    yield grant
    grant.detach()


def facts(pixels: np.ndarray, transfer: str = "push") -> dict:
    height, width, _ = pixels.shape
    return {
        "height": height,
        "width": width,
        "content_hash": content_hash(pixels.reshape(-1), height, width),
        "rgb_sha256": hashlib.sha256(pixels.tobytes()).hexdigest(),
        "transfer": transfer,
    }


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5), (48, 64), (480, 640), (1080, 1920)])
def test_pixels_arrive(attached: Attached, gateway: Gateway, height: int, width: int):
    pixels = picture(height, height, width)
    if pixels.nbytes > attached.bytes:
        attached = gateway.attach(want_bytes=8 << 20)
    generation = attached.push(pixels)
    assert gateway.see(attached.reference(pixels, generation)) == (200, [facts(pixels)])
    assert attached.released(generation)


def test_two_images_keep_their_order(attached: Attached, gateway: Gateway):
    a, b = picture(1), picture(2, 30, 150)
    first, second = attached.push(a, 0), attached.push(b, 64 << 10)
    refs = [attached.reference(b, second, 64 << 10), attached.reference(a, first, 0)]
    assert gateway.see(*refs) == (200, [facts(b), facts(a)])


def test_request_may_come_before_its_pixels(attached: Attached, gateway: Gateway):
    pixels, generation = picture(3), attached.next_generation()
    seen: list = []
    asking = threading.Thread(target=lambda: seen.append(gateway.see(attached.reference(pixels, generation))))
    asking.start()
    time.sleep(0.2)
    attached.push(pixels, generation=generation)
    asking.join()
    assert seen == [(200, [facts(pixels)])]


def test_one_push_serves_its_uses_and_no_more(attached: Attached, gateway: Gateway):
    pixels = picture(4)
    generation = attached.push(pixels)
    ref = attached.reference(pixels, generation, uses=2)
    assert gateway.see(ref, ref) == (200, [facts(pixels)] * 2)
    assert attached.released(generation, uses=2)
    assert gateway.see(ref)[0] == 409


def test_other_pixels_are_stale_and_freed(attached: Attached, gateway: Gateway):
    wanted = picture(5)
    generation = attached.push(picture(6))
    status, message = gateway.see(attached.reference(wanted, generation))
    assert (status, message[:15]) == (409, "mediagate stale")
    assert attached.released(generation)


def test_one_stale_image_does_not_keep_the_other_ones_slot(attached: Attached, gateway: Gateway):
    good, wanted = picture(7, 480, 640), picture(8)
    first, second = attached.push(good, 0), attached.push(picture(9), 2 << 20)
    assert gateway.see(attached.reference(good, first, 0), attached.reference(wanted, second, 2 << 20))[0] == 409
    assert attached.released(first)
    assert attached.released(second)


def test_what_landed_elsewhere_is_not_there(attached: Attached, gateway: Gateway):
    pixels = picture(10)
    generation = attached.push(pixels, 0)
    assert gateway.see(attached.reference(pixels, generation, offset=4096, wait_ms=100))[0] == 503


def test_nothing_arrives(attached: Attached, gateway: Gateway):
    pixels, generation = picture(11), attached.next_generation()
    status, message = gateway.see(attached.reference(pixels, generation, wait_ms=100))
    assert (status, message[:14]) == (503, "mediagate late")
    attached.push(pixels, generation=generation)  # too late: that push is over
    assert gateway.see(attached.reference(pixels, generation))[0] == 409


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": 4095},
        {"offset": 4 << 20},
        {"offset": (4 << 20) - 4096},
        {"height": 1 << 16, "width": 1 << 16},
        {"media_id": "d" * 63},
        {"uses": 0},
    ],
)
def test_no_such_slot_or_form_is_bad(attached: Attached, gateway: Gateway, changes: dict):
    pixels = picture(12, 40, 60)
    generation = attached.push(pixels)
    assert gateway.see(attached.reference(pixels, generation, **changes))[0] == 422
    assert gateway.see(attached.reference(pixels, generation)) == (200, [facts(pixels)])


def test_forged_references_are_bad(attached: Attached, gateway: Gateway):
    pixels = picture(13)
    generation = attached.push(pixels)
    ref = attached.reference(pixels, generation)
    assert gateway.see(ref.replace("/48x64/", "/64x48/"))[0] == 422
    assert gateway.see(ref[:-1] + ("0" if ref[-1] != "0" else "1"))[0] == 422
    other = gateway.__class__(gateway.url, b"a shared secret of the tests").attach()
    stolen = Attached(gateway, {**attached.answer}, other.key)
    assert gateway.see(stolen.reference(pixels, generation))[0] == 422
    other.detach()
    assert gateway.see(ref)[0] == 200


def test_unknown_worker_or_grant_is_gone(attached: Attached, gateway: Gateway):
    pixels = picture(14)
    generation = attached.push(pixels)
    assert gateway.see(attached.reference(pixels, generation, worker="0" * 16))[0] == 410
    assert gateway.see(attached.reference(pixels, generation, grant=attached.id + 1000))[0] == 410


def test_void_before_and_after_arrival(attached: Attached, gateway: Gateway):
    pixels = picture(15)
    landed, unseen = attached.push(pixels), attached.next_generation()
    assert attached.void(landed, unseen) == (200, {"void": [landed, unseen]})
    assert gateway.see(attached.reference(pixels, landed))[0] == 409
    attached.push(pixels, generation=unseen)
    assert gateway.see(attached.reference(pixels, unseen))[0] == 409


def test_void_ends_a_wait(attached: Attached, gateway: Gateway):
    pixels, generation = picture(16), attached.next_generation()
    ref = attached.reference(pixels, generation, wait_ms=60_000)
    seen: list = []
    asking = threading.Thread(target=lambda: seen.append(gateway.see(ref)))
    asking.start()
    time.sleep(0.2)
    assert attached.void(generation) == (200, {"void": [generation]})
    asking.join()
    assert seen[0][0] == 409


def test_a_mark_of_another_push_says_nothing_of_this_one(attached: Attached, gateway: Gateway):
    """Written where this one's would stand: by another generation, length, place or grant, torn, or shifted."""
    pixels, generation = picture(17), attached.next_generation()
    attached.write(pixels)
    there = behind(pixels.nbytes)
    right = mark(attached.key, attached.id, generation, 0, pixels.nbytes)
    for wrong in (
        mark(attached.key, attached.id, generation + 1, 0, pixels.nbytes),
        mark(attached.key, attached.id, generation, 0, pixels.nbytes - 1),
        mark(attached.key, attached.id, generation, 4096, pixels.nbytes),
        mark(attached.key, attached.id + 1, generation, 0, pixels.nbytes),
        mark(bytes(32), attached.id, generation, 0, pixels.nbytes),
        right[:-1] + bytes([right[-1] ^ 1]),
        right[1:] + right[:1],
        b"L 1 1 0 9216".ljust(32),
    ):
        attached.write(np.frombuffer(wrong, np.uint8), there)
        assert gateway.see(attached.reference(pixels, generation, wait_ms=50))[0] == 503
        generation = attached.next_generation()
        right = mark(attached.key, attached.id, generation, 0, pixels.nbytes)
    attached.write_mark(pixels.nbytes, generation)
    assert gateway.see(attached.reference(pixels, generation)) == (200, [facts(pixels)])


def test_a_mark_over_pixels_that_are_not_all_there_is_stale(attached: Attached, gateway: Gateway):
    pixels, generation = picture(17), attached.next_generation()
    attached.write(pixels)
    attached.write(np.zeros(100, np.uint8), 1000)
    attached.write_mark(pixels.nbytes, generation)
    assert gateway.see(attached.reference(pixels, generation))[0] == 409


def test_notifications_say_nothing(attached: Attached, gateway: Gateway):
    """Gateways send none; what an agent sends all the same is dropped."""
    pixels, generation = picture(18), attached.next_generation()
    attached.write(pixels)
    for note in ("", "L", f"L {attached.id} {generation} 0 {pixels.nbytes}", "Z 1 1", "L " + "9" * 99):
        gateway.notify(attached.answer["agent"], note)
    assert gateway.see(attached.reference(pixels, generation, wait_ms=300))[0] == 503


def test_notifications_are_not_kept(attached: Attached, gateway: Gateway, worker: Worker):
    """NIXL would keep them for ever, with as much again for each."""
    status = Path(f"/proc/{worker.lander_pid()}/status")

    def resident_mib() -> int:
        return next(int(line.split()[1]) >> 10 for line in status.read_text().splitlines() if line.startswith("VmRSS"))

    def send(mebibytes: int) -> None:
        for _ in range(mebibytes * 128):
            gateway.notify(attached.answer["agent"], "x" * 8192)
        time.sleep(0.3)  # twice as long, and more, as the lander waits with draining
        attached.settle()

    send(8)
    before = resident_mib()
    for _ in range(16):
        send(8)
    assert resident_mib() - before < 64, "128 MiB were sent"


def test_client_that_leaves_keeps_nothing(attached: Attached, gateway: Gateway):
    """Its waiting use is dropped; the push that comes later is over already."""
    import socket as sockets
    from urllib.parse import urlsplit

    pixels, generation = picture(19), attached.next_generation()
    ref = attached.reference(pixels, generation, wait_ms=60_000)
    body = json.dumps(
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": ref}}]}]}
    ).encode()
    url = urlsplit(gateway.url)
    with sockets.create_connection((url.hostname, url.port)) as s:
        s.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        until("all of it to be there", lambda: not unacknowledged(s), PATIENCE_SECONDS)
        attached.settle()
    attached.settle()
    attached.push(pixels, generation=generation)
    assert gateway.see(attached.reference(pixels, generation))[0] == 409
    assert not attached.released(generation, seconds=0.1)
    again = attached.push(pixels)
    assert gateway.see(attached.reference(pixels, again)) == (200, [facts(pixels)])


def test_uuid_alone_serves_what_was_pushed(attached: Attached, gateway: Gateway):
    pixels = picture(20)
    generation = attached.push(pixels)
    part = {"type": "image_url", "image_url": {"url": attached.reference(pixels, generation)}, "uuid": MEDIA_ID}
    assert gateway.chat(part)[0] == 200
    status, answer = gateway.chat({"type": "image_url", "image_url": None, "uuid": MEDIA_ID})
    assert status == 200
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"images": [facts(pixels, "uuid")]}


def test_a_wrong_key_changes_nothing(attached: Attached, gateway: Gateway):
    pixels = picture(20)
    generation = attached.push(pixels)
    forger = Attached(gateway, attached.answer, bytes(32))
    assert forger.void(generation)[0] == 403
    assert forger.detach()[0] == 403
    assert forger.renew(1 << 40)[0] == 403
    assert gateway.see(forger.reference(pixels, generation))[0] == 422
    assert gateway.see(attached.reference(pixels, generation)) == (200, [facts(pixels)])
    assert attached.renew()[0] == 200


def test_late_duplicates_do_not_touch_what_lives_in_the_same_place(attached: Attached, gateway: Gateway):
    old, new = picture(21), picture(22)
    first = attached.push(old)
    assert gateway.see(attached.reference(old, first)) == (200, [facts(old)])
    assert attached.released(first)
    second = attached.push(new)
    attached.write_mark(old.nbytes, first)
    assert attached.void(first) == (200, {"void": [first]})
    assert gateway.see(attached.reference(old, first))[0] == 409
    attached.write_mark(new.nbytes, second)
    assert gateway.see(attached.reference(new, second)) == (200, [facts(new)])
    assert attached.released(second)
