"""The keyed hashes by which gateway and worker know each other (docs/PROTOCOL.md, MACs)."""

import hmac
from pathlib import Path

from blake3 import blake3

SECRET_CONTEXT = "mediagate 2026-11 attach secret v1"
SECRET_MIN_BYTES = 16
ASCII_SPACE = b" \t\n\r\v\f"


def mac(key: bytes, label: str, *fields: str | bytes) -> str:
    """64 hex digits: BLAKE3 keyed with the 32-byte `key`, over the label, a zero byte, and the length-framed fields."""
    hasher = blake3(key=key)
    hasher.update(label.encode() + b"\0")
    for field in fields:
        raw = field.encode() if isinstance(field, str) else field
        hasher.update(len(raw).to_bytes(4, "little"))
        hasher.update(raw)
    return hasher.hexdigest()


def secret_key(secret: bytes) -> bytes:
    """The 32-byte key of the shared secret; an empty secret is that of a worker without a key file."""
    return blake3(secret, derive_key_context=SECRET_CONTEXT).digest()


def grant_key(secret: bytes, gateway: str, nonce: str, worker: str, worker_nonce: str) -> bytes:
    """The 32-byte key of one grant, from `secret_key` and what both sides said; it never crosses the wire."""
    return bytes.fromhex(mac(secret, "mediagate grant key v1", gateway, nonce, worker, worker_nonce))


def same(ours: str, theirs: str) -> bool:
    """Compare in constant time. `theirs` may be any text."""
    return hmac.compare_digest(ours.encode(), theirs.encode("utf-8", "surrogatepass"))


def read_secret(path: str | Path) -> bytes:
    """The secret in an attach key file: its content without ASCII white space at both ends."""
    secret = Path(path).read_bytes().strip(ASCII_SPACE)
    if len(secret) < SECRET_MIN_BYTES:
        raise ValueError(f"attach key file {path}: {len(secret)} bytes, need at least {SECRET_MIN_BYTES}")
    return secret
