"""The form of references: what parses, and what is refused before anything is looked up."""

import pytest

from mediagate_vllm.errors import Refused
from mediagate_vllm.references import Reference, parse, reference_mac

KEY = bytes(range(32))
GOOD = {
    "worker": "0123456789abcdef",
    "grant": "7",
    "generation": "42",
    "offset": "8192",
    "shape": "48x64",
    "content_hash": "fedcba9876543210",
    "media_id": "0f" * 32,
    "uses": "1",
    "wait_ms": "500",
    "mac": "0" * 32,
}


def url(**changes: str) -> str:
    return "mediagate://" + "/".join({**GOOD, **changes}.values())


def test_every_field_is_read():
    assert parse(url()) == Reference(
        "0123456789abcdef", 7, 42, 8192, 48, 64, "fedcba9876543210", "0f" * 32, 1, 500, "0" * 32
    )
    assert parse(url()).length == 48 * 64 * 3
    assert str(parse(url())) == url()


def test_mac_covers_every_field():
    text = url().removeprefix("mediagate://").rpartition("/")[0]
    tag = reference_mac(KEY, text)
    assert parse(url(mac=tag)).is_authentic(KEY)
    assert not parse(url(mac=tag)).is_authentic(bytes(32))
    others = {
        "worker": "0123456789abcdee",
        "grant": "8",
        "generation": "43",
        "offset": "4096",
        "shape": "64x48",
        "content_hash": "fedcba9876543211",
        "media_id": "0e" * 32,
        "uses": "2",
        "wait_ms": "501",
    }
    for field, other in others.items():
        assert not parse(url(mac=tag, **{field: other})).is_authentic(KEY), field


def test_numbers_of_64_bits_and_real_sizes_fit():
    largest = str(2**64 - 1)
    assert parse(url(grant=largest, generation=largest, offset=largest)).offset == 2**64 - 1
    assert len(url(generation="1" * 12, offset="1" * 10, shape="10000x10000")) < 256


@pytest.mark.parametrize(
    "changes",
    [
        {"worker": "0123456789abcde"},
        {"worker": "0123456789abcdeF"},
        {"worker": ""},
        {"grant": ""},
        {"grant": "07"},
        {"grant": "+7"},
        {"grant": "-7"},
        {"grant": "7 "},
        {"grant": "٧"},
        {"grant": "0x7"},
        {"grant": "7.0"},
        {"grant": str(2**64)},
        {"generation": "0"},
        {"generation": str(2**64)},
        {"generation": "9" * 400},
        {"offset": "-4096"},
        {"offset": str(2**64)},
        {"shape": "0x64"},
        {"shape": "48x0"},
        {"shape": "48X64"},
        {"shape": "48"},
        {"shape": "48x64x3"},
        {"shape": f"{2**21}x1"},
        {"content_hash": "fedcba987654321"},
        {"content_hash": "FEDCBA9876543210"},
        {"media_id": "0f" * 31},
        {"media_id": "0g" * 32},
        {"uses": "0"},
        {"uses": "65537"},
        {"wait_ms": "600001"},
        {"mac": "0" * 31},
        {"mac": "0" * 33},
        {"mac": "0" * 32 + "\n"},
        {"mac": "0" * 32 + "?x=1"},
        {"mac": "0" * 32 + "/"},
    ],
)
def test_bad_forms_are_refused(changes: dict[str, str]):
    with pytest.raises(Refused) as refusal:
        parse(url(**changes))
    assert refusal.value.kind == "bad"


@pytest.mark.parametrize(
    "text", ["", "mediagate://", "mediagate:", " " + url(), "MEDIAGATE" + url()[9:], url() * 2, "http://x/" + url()]
)
def test_other_texts_are_refused(text: str):
    with pytest.raises(Refused):
        parse(text)
