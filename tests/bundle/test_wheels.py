"""Wheels that were built on one host are taken by another, when they are of the same tree and fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dih20.bundle.request import Request
from dih20.bundle.vendor import wheels
from dih20.errors import WheelError
from dih20.lock import Lock
from tests.bundle.hosts import Host, SmallBundle
from tests.wheels.binaries import shared_object, wheel_of


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> SmallBundle:
    """A bundle without a wheel of deep_gemm."""
    root = tmp_path_factory.mktemp("unbuilt")
    return SmallBundle(root / "b", root / "s", wheels=("deep_ep", "deepinfer")).write()


@pytest.fixture(scope="module")
def exported(host: Host, bundle: SmallBundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("built")
    assert host.run(bundle, "--into", str(root / "di"), "--no-check").code == 0
    answer = host.run(bundle, "--into", str(root / "di"), "wheels", "export", str(root / "out"))
    assert answer.code == 0, answer.err
    return root / "out"


def test_another_host_needs_no_compiler(
    exported: Path, bundle: SmallBundle, tmp_path: Path
) -> None:
    bare = Host(tmp_path / "host").make()
    bare.program("bin/g++", "exit 1")
    words = ["--into", str(tmp_path / "di"), "--no-check"]
    assert bare.run(bundle, *words).code == 45
    answer = bare.run(bundle, *words, "--wheels", str(exported))
    assert answer.code == 0, answer.err
    assert "deep_gemm  wheel given, torch 2.11.0+cu130" in answer.out
    assert (tmp_path / "di/site-vendor/deep_gemm/__init__.py").is_file()


def test_only_what_was_built_there_is_exported(exported: Path) -> None:
    rows = json.loads((exported / "wheels.json").read_text())
    assert [row["name"] for row in rows] == ["deep_gemm"]
    assert rows[0]["torch"] == "2.11.0+cu130"


def test_a_damaged_wheel_is_refused(
    host: Host, exported: Path, bundle: SmallBundle, tmp_path: Path
) -> None:
    for path in exported.iterdir():
        content = path.read_bytes()
        (tmp_path / path.name).write_bytes(content if path.suffix == ".json" else content + b"x")
    answer = host.run(bundle, "--into", str(tmp_path / "di"), "--wheels", str(tmp_path))
    assert answer.code == 8 and "is damaged" in answer.err
    assert not (tmp_path / "di").exists()


def test_a_wheel_of_another_tree_is_refused(
    host: Host, exported: Path, bundle: SmallBundle, tmp_path: Path
) -> None:
    for path in exported.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    rows = json.loads((exported / "wheels.json").read_text())
    rows[0]["patched"] = "f" * 64
    (tmp_path / "wheels.json").write_text(json.dumps(rows))
    answer = host.run(bundle, "--into", str(tmp_path / "di"), "--wheels", str(tmp_path))
    assert answer.code == 40 and "was built from the tree ffffffffffff" in answer.err


def test_nothing_is_exported_where_nothing_was_built(
    host: Host, whole_bundle: SmallBundle, tmp_path: Path
) -> None:
    into = str(tmp_path / "di")
    assert host.run(whole_bundle, "--into", into, "--no-check").code == 0
    answer = host.run(whole_bundle, "--into", into, "wheels", "export", str(tmp_path / "out"))
    assert answer.code == 40 and "no wheel was built" in answer.err


@pytest.fixture(autouse=True)
def empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DI_WHEELS", str(tmp_path / "store"))


def vendor(folder: Path, version: str, tag: str = "cp312-cp312-linux_x86_64") -> Path:
    library = shared_object(folder / "_C.so")
    made = wheel_of(
        folder, {"deep_gemm/_C.so": library}, name="deepinfer_gemm", version=version, tag=tag
    )
    library.unlink()
    return made


def test_the_next_bundle_takes_exported_wheels_with_their_torch(tmp_path: Path) -> None:
    version = Lock.load().source("deep_gemm").version
    wheel = vendor(tmp_path, version)
    (tmp_path / "wheels.json").write_text(
        json.dumps([{"file": wheel.name, "torch": "2.13.0+cu130"}])
    )
    (row,) = wheels(Lock.load(), Request.of(wheels=str(tmp_path)))
    assert (row["name"], row["torch"]) == ("deep_gemm", "2.13.0+cu130")
    assert row["glibc"].startswith("2.")


@pytest.mark.parametrize(("version", "tag"), [("0.1", "cp312-cp312-linux_x86_64"), ("", "cp313-cp313-linux_x86_64")])  # fmt: skip
def test_a_wheel_of_another_version_or_python_is_refused(
    tmp_path: Path, version: str, tag: str
) -> None:
    vendor(tmp_path, version or Lock.load().source("deep_gemm").version, tag)
    with pytest.raises(WheelError, match="deepinfer_gemm"):
        wheels(Lock.load(), Request.of(wheels=str(tmp_path), wheels_torch="2.11.0+cu130"))
