"""What an operator sets on a worker, and what he is told where it cannot be."""

import logging

import pytest

from mediagate_vllm.errors import Refused
from mediagate_vllm.routes import DENIAL_LOG_SECONDS, Denials
from mediagate_vllm.settings import DEFAULT_LANDING_BYTES, SettingError, Settings, size


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("0", 0),
        ("65536", 65536),
        ("65536 B", 65536),
        ("64MiB", 64 << 20),
        ("64 MiB", 64 << 20),
        ("1.5GiB", 3 << 29),
        ("1GB", 10**9),
        ("2k", 2000),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes_take_units(text: str, bytes_: int):
    assert size(text) == bytes_


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e9", "1XB", "0x10", "1 2", "1Mi B", "nan", "١"])
def test_what_is_no_size_is_refused(text: str):
    with pytest.raises(ValueError, match="64MiB"):
        size(text)


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch):
    for name in ("ATTACH_KEY_FILE", "LANDING_BYTES", "GRANT_BYTES", "LEASE_SECONDS", "GRACE_SECONDS"):
        monkeypatch.delenv(f"MEDIAGATE_{name}", raising=False)
    assert Settings.from_environment() == Settings(grant_bytes=DEFAULT_LANDING_BYTES // 4)
    monkeypatch.setenv("MEDIAGATE_LANDING_BYTES", "2GiB")
    monkeypatch.setenv("MEDIAGATE_LEASE_SECONDS", "2.5")
    settings = Settings.from_environment()
    assert (settings.landing_bytes, settings.grant_bytes, settings.lease_seconds) == (2 << 30, 512 << 20, 2.5)


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("LANDING_BYTES", "lots", "64MiB"),
        ("LANDING_BYTES", "1", "at least"),
        ("GRANT_BYTES", "0", "at least"),
        ("LEASE_SECONDS", "soon", "seconds"),
        ("LEASE_SECONDS", "0", "at least"),
        ("LEASE_SECONDS", "nan", "at least"),
        ("GRACE_SECONDS", "inf", "at least"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(name: str, value: str, hint: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(f"MEDIAGATE_{name}", value)
    with pytest.raises(SettingError, match=rf"MEDIAGATE_{name} .*{hint}"):
        Settings.from_environment()


def test_denied_calls_do_not_fill_the_log(caplog: pytest.LogCaptureFixture):
    now = [100.0]
    denials = Denials(lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            denials.told(Refused("denied", "no"), "10.0.0.9")
        now[0] += DENIAL_LOG_SECONDS
        denials.told(Refused("denied", "no"), "10.0.0.9")
    assert len(caplog.records) == 2
    assert "10.0.0.9" in caplog.text
    assert "999 more" in caplog.text
