"""The vectors that the Rust side must compute as well: hashes, MACs, and a whole reference."""

import json
from pathlib import Path

import numpy as np
import pytest

from mediagate_vllm import macs
from mediagate_vllm.content import content_hash
from mediagate_vllm.marks import behind, mark
from mediagate_vllm.references import parse

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
HANDSHAKE = VECTORS["handshake"]
SECRET_KEY = bytes.fromhex(VECTORS["secret_key"])
GRANT_KEY = bytes.fromhex(HANDSHAKE["grant_key"])


def test_secret_keys():
    assert macs.secret_key(VECTORS["secret"].encode()) == SECRET_KEY
    assert macs.secret_key(b"").hex() == VECTORS["secret_key_of_no_secret"]


@pytest.mark.parametrize("vector", VECTORS["mac"])
def test_mac(vector):
    assert macs.mac(bytes.fromhex(vector["key"]), vector["label"], *vector["fields"]) == vector["mac"]


def test_fields_are_framed():
    assert len({v["mac"] for v in VECTORS["mac"]}) == len(VECTORS["mac"])


def test_handshake():
    said = [HANDSHAKE[k] for k in ("gateway", "nonce", "worker", "worker_nonce")]
    assert macs.mac(SECRET_KEY, "mediagate worker v1", *said) == HANDSHAKE["proof"]
    assert macs.grant_key(SECRET_KEY, *said) == GRANT_KEY
    attach = macs.mac(SECRET_KEY, "mediagate gateway v1", "/mediagate/attach", HANDSHAKE["attach_body"])
    assert attach == HANDSHAKE["attach_mac"]
    assert macs.mac(GRANT_KEY, "mediagate answer v1", HANDSHAKE["answer_body"]) == HANDSHAKE["answer_mac"]
    renew = macs.mac(GRANT_KEY, "mediagate call v1", "/mediagate/renew", HANDSHAKE["renew_body"])
    assert renew == HANDSHAKE["renew_mac"]


def test_reference():
    want = VECTORS["reference"]
    ref = parse(want["url"])
    assert ref.is_authentic(GRANT_KEY)
    assert not ref.is_authentic(SECRET_KEY)
    assert {k: getattr(ref, k) for k in want if k not in ("grant_key", "url")} == {
        k: v for k, v in want.items() if k not in ("grant_key", "url")
    }
    assert str(ref) == want["url"]


@pytest.mark.parametrize("vector", VECTORS["content_hash"])
def test_content_hash(vector):
    height, width = vector["height"], vector["width"]
    pixels = (np.arange(height * width * 3) % 251).astype(np.uint8)
    assert content_hash(pixels, height, width) == vector["hash"]


def test_secret_file(tmp_path):
    file = tmp_path / "key"
    file.write_bytes(b" \t0123456789abcdef\r\n")
    assert macs.read_secret(file) == b"0123456789abcdef"
    file.write_bytes(b"0123456789abcde\n")
    with pytest.raises(ValueError, match="at least 16"):
        macs.read_secret(file)


def test_mark():
    want, reference = VECTORS["mark"], VECTORS["reference"]
    length = want["length"]
    assert behind(length) == want["offset"]
    numbers = [reference[name] for name in ("grant", "generation", "offset")]
    assert mark(GRANT_KEY, *numbers, length).hex() == want["bytes"]
