"""The torch layer, with a torch and an NCCL of a few kilobytes in place of gigabytes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import ImageError, NcclMismatch
from dih20.image.build_session import only_build
from dih20.lock.files import LockedFile
from dih20.wheels import torch_layer
from dih20.wheels.image_facts import facts_of
from tests.wheels.binaries import shared_object, wheel_of

pytestmark = pytest.mark.docker

TORCH = """
import ctypes, pathlib
from torch import version
__version__ = version.__version__
site = pathlib.Path(__file__).parent.parent
ctypes.CDLL(str(site / "nvidia" / "nccl" / "lib" / "libnccl.so.2"))
"""
VERSION = "__version__ = '2.13.0+tiny'\ngit_version = 'feedfacefeedface'\ncuda = '13.0'\n"


def _nccl(folder: Path, number: int) -> Path:
    source = f"int ncclGetVersion(int* version) {{ *version = {number}; return 0; }}\n"
    library = shared_object(folder / "libnccl.so.2", source, flags=["-Wl,-soname,libnccl.so.2"])
    major, minor, patch = number // 10000, number % 10000 // 100, number % 100
    header = f"#define NCCL_MAJOR {major}\n#define NCCL_MINOR {minor}\n#define NCCL_PATCH {patch}\n"
    files: dict[str, Path | str] = {
        "nvidia/nccl/lib/libnccl.so.2": library,
        "nvidia/nccl/include/nccl.h": header,
    }
    return wheel_of(
        folder, files, name="nvidia_nccl_cu13", version="2.32.3", tag="py3-none-linux_x86_64"
    )


def _locked(name: str, version: str, wheel: Path, sha: str) -> LockedFile:
    return LockedFile(
        name=name,
        version=version,
        filename=wheel.name,
        sha256=sha * 64,
        size_bytes=wheel.stat().st_size,
        kind="wheel",
    )


def _lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, nccl: int, sha: str) -> Any:
    monkeypatch.setenv("DI_BUILD", str(tmp_path / "build"))
    files: dict[str, Path | str] = {"torch/__init__.py": TORCH, "torch/version.py": VERSION}
    torch = wheel_of(tmp_path / "torch", files, name="torch", version="2.13.0", tag="py3-none-any")
    library = _nccl(tmp_path / "nccl", nccl)
    monkeypatch.setattr(
        torch_layer, "cached", lambda file: torch if file.name == "torch" else library
    )
    pins = [
        _locked("torch", "2.13.0", torch, sha),
        _locked("nvidia-nccl-cu13", "2.29.7", library, "9"),
    ]
    locked = _locked("nvidia-nccl-cu13", "2.32.3", library, sha)
    return SimpleNamespace(torch_wheels=lambda tag: pins, nccl=lambda: locked)


def test_torch_and_the_locked_nccl_become_one_layer_and_then_a_hit(
    engine: Any, standin_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = _lock(tmp_path, monkeypatch, nccl=23203, sha="a")
    ui = Console(as_json=True)
    tag = torch_layer.with_torch(ui, engine, standin_image, lock)
    try:
        facts = facts_of(engine, tag)
        assert facts.torch == "2.13.0+tiny git feedfacefeed cuda 13.0"
        assert facts.labels["dih20.torch"] == "2.13.0"
        assert facts.nccl[0]["version"] == "2.32.3"
        assert facts.nccl[0]["path"].startswith(facts.site_packages)
        config = engine.images.get(tag).attrs["Config"]
        assert not config["Entrypoint"], "the install command must not stay in the image"
        code = "test -z \"$(find / -xdev -name '*.whl' -not -path '/proc/*')\""
        engine.containers.run(tag, ["sh", "-c", code], network_mode="none", remove=True)

        assert torch_layer.with_torch(ui, engine, standin_image, lock) == tag
        assert ui.steps[-1].status == "hit"
        assert torch_layer.with_torch(ui, engine, tag, lock) == tag, (
            "an image with torch stays as it is"
        )
    finally:
        engine.images.remove(tag, force=True)


def test_an_nccl_that_is_not_the_locked_one_makes_no_image(
    engine: Any, standin_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = _lock(tmp_path, monkeypatch, nccl=22809, sha="b")
    with pytest.raises(NcclMismatch):
        torch_layer.with_torch(Console(as_json=True), engine, standin_image, lock)
    assert not torch_layer.is_there(engine, torch_layer.tag_of(engine, standin_image, lock))


def test_the_layer_is_not_made_while_an_image_build_runs_which_would_remove_its_container(
    engine: Any, standin_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = _lock(tmp_path, monkeypatch, nccl=23203, sha="c")
    with only_build(engine), pytest.raises(ImageError, match="another image build"):
        torch_layer.with_torch(Console(as_json=True), engine, standin_image, lock)
