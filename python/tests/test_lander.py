"""The lander as a process: it dies with its parent, is started anew after a crash, and knows no torch."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import programs
import pytest
from gateway import Attached, Gateway, picture

from mediagate_vllm import memory
from mediagate_vllm.settings import SettingError

LEASE_SECONDS = 0.5


def until(what: str, is_so: Callable[[], bool]) -> None:
    programs.until(what, is_so, programs.PATIENCE_SECONDS)


def is_alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_killed_lander_is_replaced_and_waits_fail_at_once(start):
    worker = start("--grace-seconds", "0")
    first = worker.wait_for_lander()
    gateway = Gateway(worker.url)
    attached = gateway.attach()
    pixels, generation = picture(1), attached.next_generation()
    ref = attached.reference(pixels, generation, wait_ms=60_000)
    seen: list = []
    asking = threading.Thread(target=lambda: seen.append(gateway.see(ref)))
    asking.start()
    time.sleep(0.3)
    os.kill(worker.lander_pid(), signal.SIGKILL)
    asking.join()
    assert seen[0][0] == 410
    second = worker.wait_for_lander(other_than=first)
    assert second != first
    assert gateway.see(ref)[0] == 410
    assert attached.renew()[0] == 410
    again = gateway.attach()
    generation = again.push(pixels)
    assert gateway.see(again.reference(pixels, generation))[0] == 200
    assert again.released(generation)


def test_lander_ends_with_its_parent(start):
    worker = start()
    worker.wait_for_lander()
    lander = worker.lander_pid()
    worker.process.kill()
    worker.process.wait()
    until("the lander's end", lambda: not is_alive(lander))


def test_signals_for_the_group_leave_it_to_its_parent(start):
    worker = start()
    worker.wait_for_lander()
    lander = worker.lander_pid()
    for signum in (signal.SIGINT, signal.SIGTERM):
        os.kill(lander, signum)
    time.sleep(0.2)
    assert is_alive(lander)
    worker.stop()
    until("the lander's end", lambda: not is_alive(lander))


def test_lost_lease_is_gone(start):
    worker = start("--lease-seconds", str(LEASE_SECONDS), "--grace-seconds", "0.5")
    worker.wait_for_lander()
    gateway = Gateway(worker.url)
    while (attached := attached_for_longer_than_a_lease(gateway)) is None:
        pass
    pixels = picture(2)
    generation = attached.push(pixels)
    ref = attached.reference(pixels, generation)
    until("the lease to end", lambda: attached.void(999)[0] == 410)
    assert gateway.see(ref)[0] == 410
    again = gateway.attach()
    assert again.id != attached.id


def attached_for_longer_than_a_lease(gateway: Gateway) -> Attached | None:
    """None where this process got no processor for longer than that, so that the lease has ended, as it must."""
    renewed = time.monotonic()
    attached = gateway.attach()
    for _ in range(5):
        time.sleep(0.4 * LEASE_SECONDS)
        begun = time.monotonic()
        answer = attached.renew()
        if answer[0] == 410 and time.monotonic() - renewed >= LEASE_SECONDS:
            return None
        assert answer == (200, {"lease_seconds": LEASE_SECONDS})
        renewed = begun
    return attached


def test_late_write_into_a_range_of_another_is_refused_not_served(start):
    """A gateway that was paused wakes, and writes where it may no longer."""
    # Long enough that the other's does not end while this process gets no processor.
    worker = start("--lease-seconds", "5", "--grace-seconds", "0.1", "--grant-bytes", str(32 << 20))
    worker.wait_for_lander()
    paused, other = Gateway(worker.url), Gateway(worker.url)
    old = paused.attach(want_bytes=32 << 20)
    granted: list[Attached] = []

    def attach() -> bool:
        with suppress(AssertionError):  # 503 as long as the old range rests
            granted.append(other.attach(want_bytes=32 << 20))
        return bool(granted)

    until("the range to be free", attach)
    (new,) = granted
    assert new.address == old.address
    new.renew()
    pixels = picture(3)
    generation = new.push(pixels)
    try:
        old.write(picture(4))  # over RDMA this would fail at the worker's NIC: the registration is another one
    except Exception as e:
        print("the late write failed:", repr(e))
        return
    assert new.renew()[0] == 200
    status, message = other.see(new.reference(pixels, generation))
    assert (status, message[:15]) == (409, "mediagate stale")
    generation = new.push(pixels)
    assert other.see(new.reference(pixels, generation))[0] == 200


def test_stopped_lander_is_not_waited_for_for_ever(start):
    worker = start()
    worker.wait_for_lander()
    gateway = Gateway(worker.url)
    attached = gateway.attach()
    pixels = picture(5)
    generation = attached.push(pixels)
    with programs.stopped(worker.lander_pid()):
        status, message = gateway.see(attached.reference(pixels, generation, wait_ms=100))
        assert (status, message[:14]) == (503, "mediagate late")
    assert attached.released(generation)  # claimed and given up, in this order
    generation = attached.push(pixels)
    assert gateway.see(attached.reference(pixels, generation))[0] == 200


def test_whoever_connects_and_leaves_does_no_harm(start):
    worker = start()
    incarnation = worker.wait_for_lander()
    # Its own, not those of others that may be ending just now.
    lander = Path(f"/proc/{worker.lander_pid()}/fd")
    sockets = {os.readlink(file).strip("socket:[]") for file in lander.iterdir()}
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines() if "@mediagate/" in line]
    names = {line[7].removeprefix("@") for line in lines if line[6] in sockets}
    assert names
    for name in names:
        for garbage in (b"", b"\xff\xff\xff\xff", b"\2\0\0\0{}", b"\5\0\0\0trash", b"\\9\0"):
            for _ in range(10):
                with socket.socket(socket.AF_UNIX) as s:
                    s.connect("\0" + name)
                    s.send(garbage)
    assert worker.wait_for_lander() == incarnation


def test_missing_key_file_is_said_once_and_leaves_a_server_without_lander(start, tmp_path):
    worker = start("--attach-key-file", str(tmp_path / "nowhere")).wait()
    pids = lambda: Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children").read_text()  # noqa: E731
    until("the lander's end", lambda: not pids())
    gateway = Gateway(worker.url)
    fields = {"protocol": 2, "gateway": gateway.incarnation, "nonce": "0" * 64}
    assert gateway.post("/mediagate/attach/hello", fields)[0] == 503


def test_lander_has_no_torch_and_little_memory(start):
    worker = start()
    worker.wait_for_lander()
    maps = Path(f"/proc/{worker.lander_pid()}/maps").read_text()
    assert "torch" not in maps
    assert "mediagate-landing" in maps


def test_it_lets_go_of_sockets_that_its_parent_left_open():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = (
            "from mediagate_vllm.lander import close_inherited as c; import os; c(); print(os.listdir('/proc/self/fd'))"
        )
        left = subprocess.run(
            [sys.executable, "-c", code], pass_fds=[listener.fileno()], capture_output=True, text=True, check=True
        )
    # Three streams, and the folder that is listed.
    assert len(left.stdout.split(",")) == 4, left.stdout


def test_memory_that_is_not_there_is_said_in_a_line_and_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.available_bytes() is None
    (tmp_path / "meminfo").write_text("MemTotal: 9999999 kB\nMemAvailable:   4096 kB\n")
    (tmp_path / "memory.max").write_text("max\n")
    with pytest.raises(SettingError, match=r"MEDIAGATE_LANDING_BYTES asks for 8 MiB .* 4 MiB are available"):
        memory.LandingMemory(8 << 20)
    (tmp_path / "memory.max").write_text("2097152\n")
    with pytest.raises(SettingError, match="2 MiB are available"):
        memory.LandingMemory(3 << 20)
    assert memory.LandingMemory(1 << 20).size == 1 << 20


def test_landing_memory_asks_for_huge_pages():
    landing = memory.LandingMemory(4 << 20)
    maps = Path("/proc/self/smaps").read_text().splitlines()
    begins = [at for at, line in enumerate(maps) if line.startswith(f"{landing.address:x}-")]
    assert len(begins) == 1
    flags = next(line for line in maps[begins[0] :] if line.startswith("VmFlags:"))
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has none")
    assert "hg" in flags.split()
