"""vLLM's media connector: references of a gateway come from the landing memory, every other URL goes vLLM's own way."""

from http import HTTPStatus
from typing import Any

import torch
from PIL import Image
from vllm.exceptions import GracefulHTTPError, RetryableRequestError, VLLMUnprocessableEntityError
from vllm.multimodal.media import MediaConnector

from . import plugin
from .errors import STATUS, Refused
from .landing import Pixels
from .references import SCHEME

CHANNELS_AMBIGUOUS_BELOW = 5
"""vLLM and the HF processors take a CHW tensor of so few rows or columns for an HWC one; PIL images are safe."""


class MediagateConnector(MediaConnector):
    async def fetch_image_async(self, image_url: str, *, image_mode: str = "RGB") -> Any:
        if not image_url.startswith(SCHEME):
            return await super().fetch_image_async(image_url, image_mode=image_mode)
        try:
            if image_mode != "RGB":
                raise Refused("bad", f"this model wants {image_mode} pixels; a gateway pushes RGB")
            if (landing := plugin.landing()) is None:
                raise Refused("gone", "this worker takes no references")
            return as_vllm_image(await landing.take(image_url))
        except Refused as refusal:
            raise as_vllm_error(refusal) from None

    def fetch_image(self, image_url: str, *, image_mode: str = "RGB") -> Any:
        if image_url.startswith(SCHEME):
            raise as_vllm_error(Refused("bad", "references are understood by the API server only"))
        return super().fetch_image(image_url, image_mode=image_mode)


def as_vllm_image(pixels: Pixels) -> "torch.Tensor | Image.Image":
    """A (3, height, width) uint8 view of the pixels, copying nothing, or a PIL image where that could be misread."""
    height, width = pixels.height, pixels.width
    if min(height, width) < CHANNELS_AMBIGUOUS_BELOW:
        return Image.frombytes("RGB", (width, height), pixels.data.tobytes())
    return torch.from_numpy(pixels.data).view(height, width, 3).permute(2, 0, 1)


def as_vllm_error(refusal: Refused) -> Exception:
    """The exception that vLLM answers with the status of this kind, and with the message as it is."""
    if refusal.kind == "bad":
        return VLLMUnprocessableEntityError(str(refusal), parameter="image_url")
    if refusal.kind == "late":
        return RetryableRequestError(str(refusal))
    return GracefulHTTPError(str(refusal), HTTPStatus(STATUS[refusal.kind]))
