#!/usr/bin/env python3
"""Writes a small tokenizer that aiperf can count with, without a download: aiperf_tokenizer.py FOLDER.

It is that of the end-to-end tests' model, whose making needs torch; this needs `tokenizers` alone.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/e2e"))

import tiny_model


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tiny_model.tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


main()
