"""Find DeepInfer on this machine, and refuse one that the adapter was not written for."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from dih20.errors import EngineStartFailed
from dih20.serve.engines import deepinfer_symbols as symbols

_MARK = "def model_log_probs("  # what the patchset's edit of log-probs adds


def find_package() -> Path:
    """Give the engine's folder, or say why this machine cannot run it; nothing big is loaded."""
    try:
        package = importlib.import_module("deepinfer")
    except (ImportError, SyntaxError) as missing:  # its sources need Python 3.12
        raise EngineStartFailed(
            found=f"deepinfer cannot be imported: {missing}",
            expected=f"DeepInfer {symbols.VERSION}, as the image brings it",
            remedy="serve in a container that `./inv deploy` made, or use the engine `reference`",
        ) from missing
    folder = Path(str(package.__file__)).parent
    version = getattr(package, "__version__", "none")
    if version != symbols.VERSION:
        raise EngineStartFailed(
            found=f"deepinfer {version} at {folder}",
            expected=f"{symbols.VERSION}: the adapter drives its classes by name",
            remedy="put the locked version in place: `./inv deploy`",
        )
    if wrong := symbols.complaints(folder):
        raise EngineStartFailed(
            found=f"{folder} is not as expected: {'; '.join(wrong[:5])}",
            expected=f"the classes of DeepInfer {symbols.VERSION}",
            remedy="put the locked tree in place: `./inv deploy`",
            details={"complaints": wrong},
        )
    _refuse_without_gpu()
    return folder


def _refuse_without_gpu() -> None:
    import torch

    if torch.cuda.device_count() == 0:
        raise EngineStartFailed(
            found=f"no GPU: CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}, "
            f"torch {torch.__version__} sees none",
            expected="one Hopper GPU for this rank",
            remedy="serve on a GPU host: `./inv serve --host NAME`, or use the engine `reference`",
        )


def log_probs_are_the_models(package: Path) -> bool:
    """Whether the tree has the edit that takes log-probs before temperature."""
    path = package / "model_executor" / "layers" / "sampler_utils.py"
    return path.is_file() and _MARK in path.read_text(encoding="utf-8")
