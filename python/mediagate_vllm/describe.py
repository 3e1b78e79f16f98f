"""What the attach answer says of a vLLM server: models, caches, image processor. Read once, at start.

A gateway adapts to what it learns here (how many tokens an image makes, whether uuids alone are worth trying), and does
without what it does not learn: a part that this version of vLLM keeps elsewhere is left out, and logged.
"""

import logging
import platform
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

log = logging.getLogger("vllm.mediagate")

GIB = 1 << 30
SETTINGS = ("size", "patch_size", "merge_size", "temporal_patch_size", "resample", "do_resize")
"""Attributes of an image processor that decide to which size an image is brought, and how."""


def describe(state: Any) -> dict[str, Any]:
    config = state.vllm_config
    return {
        "models": _or_else([], lambda: [m.name for m in state.openai_serving_models.base_model_paths]),
        "api_processes": _or_else(1, lambda: int(config.parallel_config._api_process_count)),
        "processor_cache": _or_else({"kind": "none", "bytes": 0}, lambda: _processor_cache(config)),
        "image_processor": _or_else(None, lambda: _image_processor(config.model_config)),
        "keeps_responses": _or_else(True, _keeps_responses),
        "engine": {"name": "vllm", "version": _or_else("unknown", _vllm_version)},
    }


def _or_else(default: Any, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as e:
        log.warning("mediagate: vLLM keeps something elsewhere: %r", e)
        return default


def _keeps_responses() -> bool:
    import vllm.envs

    return bool(vllm.envs.VLLM_ENABLE_RESPONSES_API_STORE)


def _vllm_version() -> str:
    import vllm

    return vllm.__version__


def _processor_cache(config: Any) -> dict[str, Any]:
    """The kind that is in effect: more than one API process, or data parallelism, makes vLLM keep one in each."""
    multimodal, parallel = config.model_config.multimodal_config, config.parallel_config
    size = int(multimodal.mm_processor_cache_gb * GIB) if multimodal is not None else 0
    if size == 0:
        return {"kind": "none", "bytes": 0}
    one_engine = parallel.data_parallel_size == 1 or parallel.data_parallel_external_lb
    shared = parallel._api_process_count == 1 and one_engine
    return {"kind": multimodal.mm_processor_cache_type if shared else "processor_only", "bytes": size}


def _image_processor(model_config: Any) -> dict[str, Any] | None:
    """The Hugging Face image processor as this server runs it, its overrides applied.

    `call` is what `--mm-processor-kwargs` adds to every call, sizes included, which `size` has already.
    """
    from vllm.transformers_utils.processor import cached_image_processor_from_config

    processor = cached_image_processor_from_config(model_config)
    if processor is None:
        return None
    values = {name: _plain(getattr(processor, name, None)) for name in SETTINGS}
    call: dict[str, Any] = {}
    if model_config.multimodal_config.mm_processor_kwargs:
        from vllm.multimodal import MULTIMODAL_REGISTRY

        info = MULTIMODAL_REGISTRY.create_processor(model_config).info
        call = info._merge_and_resolve_mm_processor_kwargs({}).get("images_kwargs", {})
        if hasattr(info, "_get_vision_size"):
            values["size"] = _plain(info._get_vision_size(call, default_size=processor.size))
    return {
        "class": type(processor).__name__,
        **{name: value for name, value in values.items() if value is not None},
        "call": _plain(call),
        "device": str(call.get("device") or getattr(processor, "device", None) or "cpu"),
        "machine": platform.machine(),
        "versions": {name: found for name in ("transformers", "torch", "torchvision") if (found := _installed(name))},
    }


def _plain(value: Any) -> Any:
    """As JSON can say it: a size dictionary may be a dataclass, a resampling filter an enum."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if hasattr(value, "items"):
        return {str(k): _plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (bool, str)) or value is None:
        return value
    try:
        return int(value) if int(value) == value else float(value)
    except (TypeError, ValueError):
        return str(value)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
