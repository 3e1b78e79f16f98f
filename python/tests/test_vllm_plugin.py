"""The parts that only make sense inside vLLM; skipped where it is not installed. tests/e2e has the whole of it."""

import asyncio

import numpy as np
import pytest

pytest.importorskip("vllm")

from mediagate_vllm import register
from mediagate_vllm.connector import MediagateConnector, as_vllm_error, as_vllm_image
from mediagate_vllm.errors import Refused
from mediagate_vllm.landing import Pixels

REFERENCE = f"mediagate://{'0' * 16}/1/1/0/1x1/{'0' * 16}/{'0' * 64}/1/0/{'0' * 32}"


def test_register_names_the_connector_and_makes_it_the_default(monkeypatch: pytest.MonkeyPatch):
    import os

    from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY

    monkeypatch.delenv("VLLM_MEDIA_CONNECTOR", raising=False)
    register()
    assert os.environ["VLLM_MEDIA_CONNECTOR"] == "mediagate"
    assert isinstance(MEDIA_CONNECTOR_REGISTRY.load("mediagate"), MediagateConnector)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 8), (8, 4), (5, 5), (30, 150)])
def test_image_shows_its_pixels(height: int, width: int):
    pixels = np.random.default_rng(1).integers(0, 256, height * width * 3, dtype=np.uint8)
    image = as_vllm_image(Pixels(pixels, height, width, "", ""))
    rows = np.asarray(image) if min(height, width) < 5 else image.numpy().transpose(1, 2, 0)
    assert (rows == pixels.reshape(height, width, 3)).all()
    if min(height, width) >= 5:
        assert image.data_ptr() == pixels.ctypes.data


@pytest.mark.parametrize(
    ("kind", "status"), [("bad", 422), ("denied", 403), ("stale", 409), ("gone", 410), ("late", 503)]
)
def test_errors_become_vllms(kind: str, status: int):
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

    answer = create_error_response(as_vllm_error(Refused(kind, "reason")))
    assert answer.error.code == status
    assert answer.error.message.startswith(f"mediagate {kind}: reason")


def test_references_need_the_servers_loop():
    with pytest.raises(Exception, match="mediagate bad"):
        MediagateConnector().fetch_image(REFERENCE)


def test_without_a_landing_references_are_gone():
    with pytest.raises(Exception, match="mediagate gone"):
        asyncio.run(MediagateConnector().fetch_image_async(REFERENCE))


def test_other_urls_go_vllms_way():
    with pytest.raises(ValueError, match="HTTP, data or file"):
        asyncio.run(MediagateConnector().fetch_image_async("ftp://host/picture.png"))
