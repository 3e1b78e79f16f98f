#!/usr/bin/env python3
"""Makes a tiny Qwen3-VL with random weights: a real architecture for a real vLLM, in 2 MB and without a download.

    tiny_model.py [FOLDER]      default: .cache/tiny-qwen3-vl, made once and kept

Two text layers and two vision layers of width 64. The tokenizer is a byte-level BPE trained in place on the sentences
below; the image processor's settings are those that Qwen3-VL ships with, so sizes and token counts are the real ones
(one image token covers 32 x 32 pixels). The weights are wide, so that greedy answers depend on the pixels.
"""

import hashlib
import json
import pathlib
import shutil
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
DEFAULT = REPOSITORY / ".cache/tiny-qwen3-vl"

CONTEXT = 16384
WIDTH = 64
# vLLM's attention kernel for CPUs takes head sizes from 32 on.
HEAD = 32
VOCABULARY = 512
SEED = 20260801

SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
]

SENTENCES = [
    "You are a helpful assistant.",
    "Describe this image in detail. What is in the picture? What colour is it?",
    "How many people are there? Read the text in the document, and compare the two images.",
    "A gateway decodes every image once, hashes the pixels and chooses the worker that holds them.",
    "The quick brown fox jumps over the lazy dog; system, user, assistant, tool.",
]

# What Qwen's own pre-tokenizer splits on.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' or 'video' in part -%}
<|vision_start|><|video_pad|><|vision_end|>
{%- elif 'text' in part -%}
{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

IMAGE_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "processor_class": "Qwen3VLProcessor",
    "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
VIDEO_PROCESSOR = {
    **{key: value for key, value in IMAGE_PROCESSOR.items() if key != "image_processor_type"},
    "video_processor_type": "Qwen3VLVideoProcessor",
    "size": {"shortest_edge": 4096, "longest_edge": 25165824},
}


def tokenizer():
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors, trainers
    from tokenizers import pre_tokenizers as pre

    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre.Sequence(
        [
            pre.Split(Regex(WORDS), behavior="isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        initial_alphabet=pre.ByteLevel.alphabet(),
        min_frequency=1,
        show_progress=False,
    )
    made.train_from_iterator(SENTENCES, trainer)
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return made


def model(ids: dict[str, int], vocabulary: int):
    import torch
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    config = Qwen3VLConfig(
        text_config={
            "vocab_size": vocabulary,
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": WIDTH // HEAD,
            "num_key_value_heads": 1,
            "head_dim": HEAD,
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            # The sections of a head's rotary half: time, height, width.
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
        },
        vision_config={
            "depth": 2,
            "hidden_size": WIDTH,
            "intermediate_size": 2 * WIDTH,
            "num_heads": 2,
            "out_hidden_size": WIDTH,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 256,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
        dtype="float32",
    )
    made = Qwen3VLForConditionalGeneration(config).to(torch.float32).eval()
    random = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, weights in sorted(made.named_parameters()):
            if weights.ndim >= 2:
                fan_in = weights[0].numel()
                weights.normal_(0.0, 1.0 if "embed_tokens" in name else 1.5 / fan_in**0.5, generator=random)
            else:
                weights.fill_(0.0 if name.endswith("bias") else 1.0)
    return made


def write(folder: pathlib.Path) -> None:
    from transformers import GenerationConfig

    words = tokenizer()
    ids = {token: words.token_to_id(token) for token in SPECIAL}
    words.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    roles = {
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "vision_start_token": "<|vision_start|>",
        "vision_end_token": "<|vision_end|>",
    }
    files = {
        "tokenizer_config.json": {
            # The generic class: takes tokenizer.json as it is.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "bos_token": None,
            "unk_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "extra_special_tokens": roles,
            **roles,
        },
        "preprocessor_config.json": IMAGE_PROCESSOR,
        "video_preprocessor_config.json": VIDEO_PROCESSOR,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")

    model(ids, words.get_vocab_size()).save_pretrained(folder)
    GenerationConfig(
        eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]], pad_token_id=ids["<|endoftext|>"]
    ).save_pretrained(folder)


def ensure(folder: pathlib.Path = DEFAULT) -> pathlib.Path:
    """The model's folder, made if it is not there or was made by another version of this file."""
    version = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()
    mark = folder / "made-by"
    if mark.exists() and mark.read_text() == version:
        return folder
    # Written beside and renamed: one who looks at the same time sees all of it or none.
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    write(new)
    (new / "made-by").write_text(version)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    return folder


if __name__ == "__main__":
    print(ensure(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT))
