"""The bundle out of the real lock: real wheels, patched trees, NCCL. Gigabytes and minutes."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dih20.bundle import making
from dih20.bundle.onhost.reading import check_parts, read_manifest, unpack
from dih20.bundle.request import Request
from dih20.console import Console
from dih20.engine_check.sources import source_hashes
from dih20.lock import Lock

pytestmark = [pytest.mark.vendor, pytest.mark.timeout(3600)]

# packages whose size is all that they add to what is tested here
LARGE = "scipy,numpy,xgrammar,tilelang,z3-solver,sympy,transformers,pillow"


def made(ui: Console, out: Path, **options: Any) -> dict[str, Any]:
    making.make(ui, Request.of(out=str(out), level=1, **options), only_plan=False)
    return read_manifest(out)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs with the same options; the second finds no block that the first has compressed."""
    root = tmp_path_factory.mktemp("real")
    options = {"without": LARGE, "thin_nccl": "sm_90", "part_size": "16M"}
    for name in ("one", "two"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(making, "block_cache", lambda blocks=root / f"blocks-{name}": blocks)
            made(Console(), root / name, **options)
        shutil.rmtree(root / f"blocks-{name}")
    return root / "one", root / "two"


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_two_runs_give_the_same_bytes(bundles: tuple[Path, Path]) -> None:
    first, second = map(hashes, bundles)
    assert len(first) > 10
    assert first == second


def test_no_part_is_larger_than_asked_for(bundles: tuple[Path, Path]) -> None:
    sizes = [path.stat().st_size for path in bundles[0].glob("di-h20.part-*")]
    assert len(sizes) > 3 and max(sizes) == 16 << 20


def test_the_manifest_holds_the_lock_and_the_option(bundles: tuple[Path, Path]) -> None:
    manifest, lock = read_manifest(bundles[0]), Lock.load()
    assert manifest["lock"] == lock.identity
    assert manifest["nccl"]["version"] == lock.nccl().version
    assert manifest["nccl"]["thinned"]["architecture"] == "sm_90"
    assert manifest["nccl"]["thinned"]["images_kept"] > 0
    assert "numpy" in manifest["options"]["without"]
    wanted = {
        f.name: f.sha256 for f in lock.requirements("cp312") if f.name not in LARGE.split(",")
    }
    found = {f["name"]: f["sha256"] for f in manifest["files"]}
    assert wanted.items() <= found.items()


def test_what_comes_out_is_what_the_manifest_says(
    bundles: tuple[Path, Path], tmp_path: Path
) -> None:
    manifest = read_manifest(bundles[0])
    check_parts(bundles[0], manifest)
    unpack(bundles[0], manifest, tmp_path)
    for name in ("posix_ipc", "orjson", "tile_kernels", "pytest", "tokenizers"):
        assert list(tmp_path.glob(f"site/{name}*")), name
    for header in ("elfutils/libdw.h", "libelf.h", "zstd.h", "cublas_v2.h", "cusparse.h"):
        assert (tmp_path / "headers/include" / header).is_file(), header
    assert (tmp_path / "site-nccl/nvidia/nccl/include/nccl.h").is_file()
    assert list(tmp_path.glob("site-nccl/nvidia_nccl_cu13-*.dist-info/RECORD")), (
        "DeepEP looks for it"
    )
    tree = tmp_path / "sources/deepinfer"
    assert "dih20 P01" in (tree / "deepinfer/platform.py").read_text()
    assert source_hashes(tree)["tree"] == manifest["sources"]["tree"]
    assert (tmp_path / "own/v41/canary/data/model-00001-of-00002.safetensors").is_file()


def test_what_runs_beside_the_engine_imports_from_the_bundle_alone(
    bundles: tuple[Path, Path], tmp_path: Path
) -> None:
    unpack(bundles[0], read_manifest(bundles[0]), tmp_path)
    code = "import dih20.engine_check.options, dih20.engine_check.stages; print(dih20.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "own")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout


def test_a_host_that_does_not_fit_is_told_why(bundles: tuple[Path, Path]) -> None:
    """This machine has no torch for CUDA, and perhaps another Python."""
    done = subprocess.run(
        ["sh", str(bundles[0] / "run.sh"), "verify"], env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 45, done.stderr
    assert "this host cannot run the bundle" in done.stderr and "Traceback" not in done.stderr


def test_a_bundle_replaces_a_bundle_and_nothing_else(
    ui: Console, bundles: tuple[Path, Path], tmp_path: Path
) -> None:
    from dih20.errors import UsageError

    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UsageError, match="is no bundle"):
        making.make(ui, Request.of(out=str(tmp_path)), only_plan=False)
    assert json.loads((bundles[0] / "manifest.json").read_text())["format"] == 1
