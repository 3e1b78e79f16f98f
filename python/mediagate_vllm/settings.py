"""What an operator can set on a worker, all by environment variables, since vLLM has no flags for plugins.

| variable | default | means |
| --- | --- | --- |
| MEDIAGATE_ATTACH_KEY_FILE | none | file with the secret shared with gateways; none: only those on this machine |
| MEDIAGATE_LANDING_BYTES | 512 MiB | landing memory, taken at start |
| MEDIAGATE_GRANT_BYTES | a quarter of it | the most that one gateway is granted |
| MEDIAGATE_LEASE_SECONDS | 15 | a grant whose gateway is not heard of for so long is lost |
| MEDIAGATE_GRACE_SECONDS | 30 | a lost range is granted again after so long |
"""

import os
from dataclasses import dataclass

from .references import PAGE_BYTES

DEFAULT_LANDING_BYTES = 512 << 20
LEAST_LANDING_BYTES = 1 << 20


@dataclass(frozen=True)
class Settings:
    attach_key_file: str | None = None
    landing_bytes: int = DEFAULT_LANDING_BYTES
    grant_bytes: int = DEFAULT_LANDING_BYTES // 4
    lease_seconds: float = 15.0
    grace_seconds: float = 30.0

    @staticmethod
    def from_environment() -> "Settings":
        def number(name: str, default: float, least: float) -> float:
            text = os.environ.get(f"MEDIAGATE_{name}", "")
            try:
                value = float(text) if text else default
            except ValueError:
                raise ValueError(f"MEDIAGATE_{name} must be a number, not {text!r}") from None
            if not least <= value < float("inf"):
                raise ValueError(f"MEDIAGATE_{name} must be at least {least}")
            return value

        landing = int(number("LANDING_BYTES", DEFAULT_LANDING_BYTES, LEAST_LANDING_BYTES))
        landing -= landing % PAGE_BYTES
        return Settings(
            attach_key_file=os.environ.get("MEDIAGATE_ATTACH_KEY_FILE") or None,
            landing_bytes=landing,
            grant_bytes=int(number("GRANT_BYTES", max(landing // 4, LEAST_LANDING_BYTES), PAGE_BYTES)),
            lease_seconds=number("LEASE_SECONDS", 15.0, 0.1),
            grace_seconds=number("GRACE_SECONDS", 30.0, 0.0),
        )
