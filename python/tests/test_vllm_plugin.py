"""The parts that only make sense inside vLLM; skipped where it is not installed. tests/e2e has the whole of it."""

import asyncio
import logging
import os
import sys
from unittest.mock import MagicMock

import numpy as np
import pytest

pytest.importorskip("vllm")

from mediagate_vllm import plugin, register
from mediagate_vllm.connector import MediagateConnector, as_vllm_error, as_vllm_image
from mediagate_vllm.endpoint import MediagateEndpoint, _socket_name
from mediagate_vllm.errors import Refused
from mediagate_vllm.landing import Pixels

REFERENCE = f"mediagate://{'0' * 16}/1/1/0/1x1/{'0' * 16}/{'0' * 64}/1/0/{'0' * 32}"


def test_register_names_the_connector_and_makes_it_the_default(monkeypatch: pytest.MonkeyPatch):
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


class Args:
    host, port, uds = None, 8000, None


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"VLLM_MEDIA_CONNECTOR": "another"}, "VLLM_MEDIA_CONNECTOR is another"),
        ({"MEDIAGATE_LANDING_BYTES": "lots"}, "MEDIAGATE_LANDING_BYTES is 'lots'"),
    ],
)
def test_what_an_operator_set_wrongly_costs_a_line_and_no_server(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("VLLM_MEDIA_CONNECTOR", "mediagate")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    state = MagicMock()
    state.vllm_config.parallel_config._api_process_rank = 0
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    asyncio.run(MediagateEndpoint().init_state(None, state, Args()))
    assert plugin.landing() is None
    line = next(record for record in caplog.records if said in record.message)
    assert line.exc_info is None
    assert "images will come inline" in line.message


def test_a_vllm_without_a_place_for_the_connector_starts_all_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("VLLM_MEDIA_CONNECTOR", raising=False)
    monkeypatch.setitem(sys.modules, "mediagate_vllm.connector", None)
    register()
    assert "VLLM_MEDIA_CONNECTOR" not in os.environ


def test_servers_on_two_sockets_have_landers_of_their_own():
    names = set()
    for address in ({"uds": "/run/a"}, {"uds": "/run/b" + "x" * 200}, {"port": 8001}, {"host": "::1"}, {}):
        args = Args()
        vars(args).update(address)
        names.add(_socket_name(args))
        assert len(_socket_name(args)) <= 107
    assert len(names) == 5
