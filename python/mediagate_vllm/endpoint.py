"""vLLM's endpoint plugin: the attach routes on vLLM's own port, and the start of the lander.

It must be named in VLLM_PLUGINS. `init_state` runs in each API process after vLLM has started its engines, which must
not inherit a NIXL agent.
"""

import logging
import os
from typing import Any

from blake3 import blake3
from fastapi import FastAPI

from . import CONNECTOR, plugin
from .describe import describe
from .routes import attach_routes
from .settings import SettingError

log = logging.getLogger("vllm.mediagate")


class MediagateEndpoint:
    name = "mediagate"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        app.include_router(attach_routes(plugin.landing))

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Whatever fails here costs references, never vLLM: gateways send their images inline."""
        try:
            _check_connector()
            parallel = state.vllm_config.parallel_config
            plugin.start(parallel._api_process_rank, _socket_name(args), describe(state))
        except SettingError as e:
            log.error("mediagate: %s; images will come inline", e)
        except Exception:
            log.exception("mediagate: no landing on this worker; images will come inline")


def _check_connector() -> None:
    """References that landed would be of no use to another connector."""
    if (chosen := os.environ.get("VLLM_MEDIA_CONNECTOR")) != CONNECTOR:
        raise SettingError(f"VLLM_MEDIA_CONNECTOR is {chosen}, and must be {CONNECTOR} or not set at all")


def _socket_name(args: Any) -> str:
    """The same in all API processes of one `vllm serve`: children of one parent, on one address.

    Abstract, so that nothing is left behind; both ends check that the other is of the same user.
    """
    address = getattr(args, "uds", None) or f"{args.host or ''}:{args.port}"
    digest = blake3(address.encode()).hexdigest(length=8)  # a name has at most 107 bytes
    return f"\0mediagate/{os.getuid()}/{os.getppid()}/{digest}"
