"""The vision tensors that the engine's loader demands, as a shard of zeros.

Their shapes are constants of the engine, 0.8 GB in bf16, so they are made where the canary is
served and never committed. The file is sparse: it takes no room on file systems with holes.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

from v41.checkpoint.reading import INDEX

SHARD = "model-vision.safetensors"
_DIM, _LAYERS, _INTER, _PATCH = 1024, 32, 2816, 588
_JOINED = 9  # 3 x 3 patches become one text token


def vision_tensors(hidden: int) -> dict[str, tuple[int, ...]]:
    """Give names and shapes, all bf16; hidden is the text model's."""
    shapes: dict[str, tuple[int, ...]] = {
        "image_start": (hidden,),
        "image_end": (hidden,),
        "image_newline": (hidden,),
        "vision.patch_embed.proj.weight": (_DIM, _PATCH),
        "vision.patch_embed.proj.bias": (_DIM,),
        "vision.norm.weight": (_DIM,),
        "aligner.w1.weight": (hidden, _JOINED * _DIM),
        "aligner.w1.bias": (hidden,),
        "aligner.w2.weight": (hidden, hidden),
        "aligner.w2.bias": (hidden,),
    }
    for layer in range(_LAYERS):
        block = f"vision.blocks.{layer}"
        shapes |= {
            f"{block}.norm1.weight": (_DIM,),
            f"{block}.norm2.weight": (_DIM,),
            f"{block}.attn.wqkv.weight": (3 * _DIM, _DIM),
            f"{block}.attn.wqkv.bias": (3 * _DIM,),
            f"{block}.attn.wo.weight": (_DIM, _DIM),
            f"{block}.attn.wo.bias": (_DIM,),
            f"{block}.mlp.w1.weight": (2 * _INTER, _DIM),
            f"{block}.mlp.w2.weight": (_DIM, _INTER),
        }
    return shapes


def write_with_vision(canary: Path, folder: Path) -> int:
    """Copy the canary to a new folder and add the shard; returns the shard's bytes.

    Raises FileExistsError when the folder is there already.
    """
    folder.mkdir(parents=True)
    for path in sorted(canary.iterdir()):
        shutil.copyfile(path, folder / path.name)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shapes = vision_tensors(config["text_config"]["hidden_size"])
    size = _write_zeros(folder / SHARD, shapes)
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    index["weight_map"] |= dict.fromkeys(shapes, SHARD)
    index["metadata"]["total_size"] += sum(2 * math.prod(shape) for shape in shapes.values())
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return size


def _write_zeros(path: Path, shapes: dict[str, tuple[int, ...]]) -> int:
    header: dict[str, Any] = {}
    offset = 0
    for name, shape in shapes.items():
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    return 8 + len(text) + offset
