"""The worker's half of mediagate: pixels that a gateway has decoded land here, and vLLM takes them as its own.

How a picture comes in, and which file to open for each step:

1. A gateway attaches: `POST /mediagate/attach` on vLLM's own port (`endpoint`, `routes`), answered by the **lander**,
   a process of its own (`lander`, started and restarted by `supervisor`) which owns the NIXL agent (`agent`) and the
   landing memory (`memory`). `door` says who may come in (`macs`, `nonces`), `book` what each gateway was granted
   (`ranges`) and what has become of each push (`pushes`), `host` where it runs. With `probe` the gateway then measures
   what a push takes, and the same pixels inside a request.
2. The gateway WRITEs pixels into its grant, and behind them a mark (`marks`), while the request is already on its way
   with a reference (`references`) in place of the image's URL.
3. vLLM hands that URL to our media connector (`connector`). It asks the lander for the pixels (`landing`, `wire`),
   copies them once, compares the copy's hash (`content`) with the reference, and tells the lander that it is done.

`standin` is a small OpenAI-compatible server on the same receiving code, to try a gateway without vLLM.
The contract with the gateway is docs/PROTOCOL.md. Everything refused is an `errors.Refused`.
"""

import logging
import os

__version__ = "0.1.0"

CONNECTOR = "mediagate"
"""What the media connector is called in VLLM_MEDIA_CONNECTOR."""


def register() -> None:
    """vLLM's general plugin: name the connector, and make it the default.

    This runs in every process of vLLM, some of which fork later. So: no NIXL, no threads, no sockets here. vLLM would
    not survive an exception; without the connector `endpoint` grants no memory, and images come inline.
    """
    try:
        from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY

        from .connector import MediagateConnector
    except ImportError as e:
        logging.getLogger("vllm.mediagate").warning("mediagate: this vLLM has no place for the media connector: %s", e)
        return
    MEDIA_CONNECTOR_REGISTRY.register(CONNECTOR)(MediagateConnector)
    os.environ.setdefault("VLLM_MEDIA_CONNECTOR", CONNECTOR)
