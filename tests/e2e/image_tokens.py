#!/usr/bin/env python3
"""How many tokens transformers makes of images: writes tests/data/image_tokens.json, which the gateway is held against.

image_tokens.py             writes the table
image_tokens.py --check     fails if the table is not what this transformers says
"""

import argparse
import copy
import json
import pathlib
import random
import types

import tiny_model

TABLE = tiny_model.REPOSITORY / "tests/data/image_tokens.json"

QWEN2 = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
QWEN3 = tiny_model.IMAGE_PROCESSOR
CLIP = {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14}
SIGLIP = {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 16}
PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
# A model's config.json and image processor, as far as they matter here. The names are for messages.
MODELS = {
    "Qwen2-VL as published": ({"model_type": "qwen2_vl"}, {**QWEN2, "min_pixels": 3136, "max_pixels": 12845056}),
    "Qwen2-VL with defaults": ({"model_type": "qwen2_vl"}, {}),
    "Qwen2.5-VL as saved anew": (
        {"model_type": "qwen2_5_vl"},
        {**QWEN2, "size": {"shortest_edge": 3136, "longest_edge": 12845056}},
    ),
    "Qwen2.5-VL with few pixels": (
        {"model_type": "qwen2_5_vl"},
        {**QWEN2, "max_pixels": 602112, "size": {"shortest_edge": 200704, "longest_edge": 12845056}},
    ),
    "Qwen3-VL": ({"model_type": "qwen3_vl"}, QWEN3),
    "Qwen3-VL-MoE": ({"model_type": "qwen3_vl_moe"}, QWEN3),
    "Qwen3.5": ({"model_type": "qwen3_5"}, QWEN3),
    "LLaVA 1.5": ({"model_type": "llava", "vision_config": CLIP, "vision_feature_select_strategy": "default"}, None),
    "LLaVA with SigLIP": (
        {"model_type": "llava", "vision_config": SIGLIP, "vision_feature_select_strategy": "full"},
        None,
    ),
    "LLaVA-NeXT": (
        {
            "model_type": "llava_next",
            "vision_config": CLIP,
            "vision_feature_select_strategy": "default",
            "image_grid_pinpoints": PINPOINTS,
        },
        None,
    ),
    "LLaVA-NeXT with SigLIP and a wide grid": (
        {
            "model_type": "llava_next",
            "vision_config": SIGLIP,
            "vision_feature_select_strategy": "full",
            "image_grid_pinpoints": [[384 * a, 384 * b] for a in range(1, 7) for b in range(1, 7) if a * b <= 9],
        },
        None,
    ),
}


def sizes() -> list[tuple[int, int]]:
    """Heights and widths: usual ones, edges of the rules, and some at random."""
    usual = [(480, 640), (640, 480), (768, 1024), (1080, 1920), (1920, 1080), (2160, 3840), (3024, 4032), (336, 336)]
    edges = [(1, 1), (1, 200), (200, 1), (13, 14), (28, 28), (27, 29), (42, 42), (56, 56), (57, 55), (400, 400)]
    edges += [(224, 224), (448, 447), (80, 16), (16, 80), (70, 14), (1008, 336), (335, 1009), (9000, 9000), (50, 9999)]
    chance = random.Random(7)
    some = [(chance.randint(1, 3000), chance.randint(1, 3000)) for _ in range(150)]
    return [size for size in usual + edges + some if max(size) <= 200 * min(size)]


def counter(config: dict, processor: dict | None):
    """What transformers says of a model, as a function of height and width."""
    if config["model_type"].startswith("qwen"):
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

        # A copy, since it writes into what it is given.
        images = Qwen2VLImageProcessor(**copy.deepcopy(processor or {}))
        return lambda height, width: images.get_number_of_image_patches(height, width) // images.merge_size**2

    from transformers.models.llava.processing_llava import LlavaProcessor
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor

    tower, side = config["vision_config"], config["vision_config"]["image_size"]
    # The processors' own arithmetic, without the tokenizer that they would want for their text.
    this = types.SimpleNamespace(
        patch_size=tower["patch_size"],
        num_additional_image_tokens=1 if tower["model_type"] == "clip_vision_model" else 0,
        vision_feature_select_strategy=config["vision_feature_select_strategy"],
        image_processor=types.SimpleNamespace(
            crop_size={"height": side, "width": side}, image_grid_pinpoints=config.get("image_grid_pinpoints")
        ),
    )
    if config["model_type"] == "llava":
        return lambda height, width: LlavaProcessor._get_num_multimodal_tokens(this, [(height, width)])[
            "num_image_tokens"
        ][0]
    this._get_unpadded_features = types.MethodType(LlavaNextProcessor._get_unpadded_features, this)

    def next_tokens(height: int, width: int) -> int:
        tokens = LlavaNextProcessor._get_number_of_features(this, height, width, side, side)
        return tokens - (this.vision_feature_select_strategy == "default")

    return next_tokens


def table() -> list[dict]:
    made = []
    for name, (config, processor) in MODELS.items():
        count = counter(config, processor)
        counts = [[height, width, count(height, width)] for height, width in sizes()]
        made.append({"model": name, "config": config, "image_processor": processor, "counts": counts})
    return made


def written(models: list[dict]) -> str:
    return "[\n" + ",\n".join(json.dumps(model, separators=(",", ":")) for model in models) + "\n]\n"


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--check", action="store_true")
    text = written(table())
    if options.parse_args().check:
        assert TABLE.read_text() == text, f"{TABLE} is not what this transformers says"
    else:
        pathlib.Path(TABLE).write_text(text)


if __name__ == "__main__":
    main()
