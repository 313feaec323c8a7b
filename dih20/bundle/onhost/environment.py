"""The environment that everything installed runs in; the host's own packages stay as they are."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from dih20.bundle.onhost.layout import Layout

CACHES = {
    "TILELANG_CACHE_DIR": "tilelang",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "EP_JIT_CACHE_DIR": "deep_ep",
    "H20_OPS_CACHE_DIR": "h20_ops",
}
# The same target where kernels are compiled beforehand, so that the keys of TileLang's cache agree.
TILELANG_TARGET = '{"kind":"cuda","arch":"sm_90a"}'


def search_path(layout: Layout) -> list[str]:
    """Give the folders for PYTHONPATH, the first wins; NCCL's comes first, so that torch maps it."""
    nccl = [layout.nccl] if layout.nccl.is_dir() else []
    dropins = [layout.own / "dropins" / name for name in ("flash_mla", "deep_select")]
    places = [*nccl, layout.own, *dropins, layout.engine, layout.vendor_site, layout.root / "site"]
    return [str(place) for place in places]


def variables(layout: Layout, cuda_home: str) -> dict[str, str]:
    """Give what is added to the host's environment."""
    found = {
        "PYTHONPATH": os.pathsep.join(search_path(layout)),
        "DEEPINFER_ACCELERATOR": "nvidia",
        "TILELANG_DEFAULT_TARGET": TILELANG_TARGET,
        "PYTHONNOUSERSITE": "1",
    }
    found |= {name: str(layout.caches / folder) for name, folder in CACHES.items()}
    if layout.nccl.is_dir():
        found["EP_NCCL_ROOT_DIR"] = str(layout.nccl / "nvidia" / "nccl")
    if cuda_home:
        found["CUDA_HOME"] = cuda_home
        found["PATH"] = f"{cuda_home}/bin{os.pathsep}{os.environ.get('PATH', '')}"
    return found


def whole(layout: Layout, cuda_home: str) -> dict[str, str]:
    """Give the host's environment with ours in force; the user's own cache folders win."""
    own = variables(layout, cuda_home)
    if theirs := os.environ.get(
        "PYTHONPATH"
    ):  # what a bundle made with --without leaves to the host
        own["PYTHONPATH"] += f"{os.pathsep}{theirs}"
    given = {name: os.environ[name] for name in (*CACHES, "TILELANG_DEFAULT_TARGET") if os.environ.get(name)}  # fmt: skip
    return {**os.environ, **own, **given}


def write_script(layout: Layout, found: Mapping[str, str]) -> None:
    """Leave env.sh, to be read by a shell that wants to use what is installed."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(found.items()) if name != "PATH"]  # fmt: skip
    (layout.root / "env.sh").write_text("\n".join(lines) + "\n")
