"""What an operator can set on a worker, all by environment variables, since vLLM has no flags for plugins.

| variable | default | means |
| --- | --- | --- |
| MEDIAGATE_ATTACH_KEY_FILE | none | file with the secret shared with gateways; none: only those on this machine |
| MEDIAGATE_LANDING_BYTES | 512MiB | landing memory, taken at start |
| MEDIAGATE_GRANT_BYTES | a quarter of it | the most that one gateway is granted |
| MEDIAGATE_LEASE_SECONDS | 15 | a grant whose gateway is not heard of for so long is lost |
| MEDIAGATE_GRACE_SECONDS | 30 | a lost range is granted again after so long |

Sizes take units, as the gateway's do: 65536, 64MiB, 1GB.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from .references import PAGE_BYTES

DEFAULT_LANDING_BYTES = 512 << 20
LEAST_LANDING_BYTES = 1 << 20

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)


Number = TypeVar("Number", int, float)


class SettingError(Exception):
    """What the operator asked for cannot be. The message is one line, and says what to do."""


@dataclass(frozen=True)
class Settings:
    attach_key_file: str | None = None
    landing_bytes: int = DEFAULT_LANDING_BYTES
    grant_bytes: int = DEFAULT_LANDING_BYTES // 4
    lease_seconds: float = 15.0
    grace_seconds: float = 30.0

    @staticmethod
    def from_environment() -> "Settings":
        landing = _from("LANDING_BYTES", size, DEFAULT_LANDING_BYTES, LEAST_LANDING_BYTES)
        landing -= landing % PAGE_BYTES
        return Settings(
            attach_key_file=os.environ.get("MEDIAGATE_ATTACH_KEY_FILE") or None,
            landing_bytes=landing,
            grant_bytes=_from("GRANT_BYTES", size, max(landing // 4, LEAST_LANDING_BYTES), PAGE_BYTES),
            lease_seconds=_from("LEASE_SECONDS", _seconds, 15.0, 0.1),
            grace_seconds=_from("GRACE_SECONDS", _seconds, 30.0, 0.0),
        )


def size(text: str) -> int:
    """Bytes: a number alone, or with a unit (MB is 1000 x 1000, MiB is 1024 x 1024), or ValueError."""
    if (m := _SIZE.fullmatch(text.strip())) is None:
        raise ValueError("must be a number of bytes, alone or with a unit: 65536, 64MiB, 1GB")
    number, prefix, binary = m.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** (" kmgt".index(prefix.lower()) if prefix else 0))


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("must be a number of seconds") from None


def _from(name: str, read: Callable[[str], Number], default: Number, least: Number) -> Number:
    variable = f"MEDIAGATE_{name}"
    if not (text := os.environ.get(variable, "")):
        return default
    try:
        value = read(text)
    except ValueError as e:
        raise SettingError(f"{variable} is {text!r}, and {e}") from None
    if not least <= value < float("inf"):
        raise SettingError(f"{variable} is {text}, and must be at least {least}")
    return value
