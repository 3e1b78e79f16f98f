"""Image token counts: the table of the Rust tests, and the tiny model's own processor against `mediagate inspect`."""

import json
import subprocess

from PIL import Image

import image_tokens
import tiny_model


def test_the_table_is_what_this_transformers_says():
    assert image_tokens.TABLE.read_text() == image_tokens.written(image_tokens.table())


def test_inspect_counts_what_the_models_own_processor_makes(tmp_path):
    from transformers import AutoImageProcessor

    folder = tiny_model.ensure()
    processor = AutoImageProcessor.from_pretrained(folder)
    files, expected = [], []
    for height, width in [(480, 640), (641, 479), (1, 1), (1, 150), (31, 33), (240, 272), (1080, 1920), (100, 2000)]:
        image = Image.new("RGB", (width, height))
        files.append(str(tmp_path / f"{width}x{height}.png"))
        image.save(files[-1])
        grid = processor(images=[image], return_tensors="pt")["image_grid_thw"][0]
        expected.append(int(grid.prod()) // processor.merge_size**2)
    command = [tiny_model.REPOSITORY / "target/release/mediagate", "inspect", "--json", "--model-path", folder, *files]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [json.loads(line)["tokens"] for line in lines] == expected
