"""A worker for Dynamo's frontend that does what Dynamo's own vLLM worker does with pictures, and answers fixed tokens.

    dynamo_worker.py MODEL_FOLDER NAME

It registers the model with frontend decoding, READs each decoded picture over NIXL into memory of its own (registered
for the one READ, as dynamo.nixl_connect does), and gives the memory back.
"""

import asyncio
import base64
import sys
import zlib

import numpy
import uvloop
from dynamo.common.utils.runtime import create_runtime
from dynamo.llm import MediaDecoder, MediaFetcher, ModelInput, ModelType, WorkerType, register_model
from nixl_cu12._api import nixl_agent, nixl_agent_config

BLOCK = 16
# As dynamo.nixl_connect waits for a READ.
POLL_SECONDS = 0.005


async def read(agent: nixl_agent, decoded: dict) -> int:
    """READs one picture; how many bytes it has."""
    metadata = zlib.decompress(base64.b64decode(decoded["nixl_metadata"].removeprefix("b64:")))
    peer = agent.add_remote_agent(metadata)
    size = decoded["nixl_descriptor"]["size"]
    pixels = numpy.empty(size, numpy.uint8)
    registered = agent.register_memory([(pixels.ctypes.data, size, 0, "")], "DRAM")
    local = agent.get_xfer_descs([(pixels.ctypes.data, size, 0)], "DRAM")
    remote = agent.get_xfer_descs([(decoded["nixl_descriptor"]["addr"], size, 0)], "DRAM")
    transfer = agent.initialize_xfer("READ", local, remote, peer, b"read")
    state = agent.transfer(transfer)
    while state not in ("DONE", "ERR"):
        await asyncio.sleep(POLL_SECONDS)
        state = agent.check_xfer_state(transfer)
    agent.release_xfer_handle(transfer)
    agent.deregister_memory(registered)
    if state == "ERR":
        raise RuntimeError("the READ failed")
    return size


async def main(folder: str, name: str) -> None:
    runtime, _ = create_runtime("file", "tcp", "zmq")
    endpoint = runtime.endpoint("dynamo.backend.generate")
    agent = nixl_agent(f"worker-{name}", nixl_agent_config(backends=["UCX"]))
    decoder, fetcher = MediaDecoder(), MediaFetcher()
    decoder.enable_image({"limits": {"max_alloc": 256 << 20}})
    fetcher.timeout_ms(30_000)
    fetcher.allow_direct_ip(True)
    fetcher.allow_direct_port(True)
    await register_model(
        ModelInput.Tokens,
        ModelType.Chat,
        endpoint,
        folder,
        name,
        worker_type=WorkerType.Aggregated,
        kv_cache_block_size=BLOCK,
        media_decoder=decoder,
        media_fetcher=fetcher,
    )

    async def generate(request, context=None):
        for picture in (request.get("multi_modal_data") or {}).get("image_url", []):
            await read(agent, picture["Decoded"])
        for token in [72, 73, 74]:
            yield {"token_ids": [token]}
        yield {"token_ids": [75], "finish_reason": "stop"}

    await endpoint.serve_endpoint(generate, graceful_shutdown=True)


uvloop.run(main(sys.argv[1], sys.argv[2]))
