"""Compiled kernels travel between equal hosts, and never to another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.bundle.hosts import Host, SmallBundle


@pytest.fixture(scope="module")
def standing(
    host: Host, whole_bundle: SmallBundle, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    place = tmp_path_factory.mktemp("standing") / "di"
    assert host.run(whole_bundle, "--into", str(place), "--no-check").code == 0
    return place


@pytest.fixture
def two(standing: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two installed folders; the first has compiled kernels."""
    places = tmp_path / "one", tmp_path / "two"
    for place in places:
        shutil.copytree(standing, place)
    for name, text in (
        ("tilelang/k/kernel.so", "T"),
        ("deep_gemm/k/kernel.cubin", "D"),
        ("h20_ops/a.cubin", "H"),
    ):
        path = places[0] / "caches" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (places[0] / "caches/tilelang/k/.lock").write_text("")
    (places[0] / "caches/deep_gemm/k/empty.cubin").write_text("")
    return places


def test_kernels_come_over_and_unfinished_files_do_not(
    host: Host, whole_bundle: SmallBundle, two: tuple[Path, Path], tmp_path: Path
) -> None:
    out = str(tmp_path / "caches")
    assert host.run(whole_bundle, "--into", str(two[0]), "cache", "export", out).code == 0
    answer = host.run(whole_bundle, "--into", str(two[1]), "cache", "import", out)
    assert answer.code == 0 and "3 files added" in answer.out
    there = sorted(p.name for p in (two[1] / "caches").rglob("*") if p.is_file())
    assert there == ["a.cubin", "kernel.cubin", "kernel.so"]


def test_what_is_there_already_stays(
    host: Host, whole_bundle: SmallBundle, two: tuple[Path, Path], tmp_path: Path
) -> None:
    own = two[1] / "caches/h20_ops/a.cubin"
    own.parent.mkdir(parents=True)
    own.write_text("own")
    out = str(tmp_path / "caches")
    host.run(whole_bundle, "--into", str(two[0]), "cache", "export", out)
    answer = host.run(whole_bundle, "--into", str(two[1]), "cache", "import", out)
    assert "2 files added; 0 were here, 1 stay that differ" in answer.out
    assert own.read_text() == "own"


@pytest.mark.parametrize("name", ["torch", "nvcc", "deep_gemm", "tilelang", "glibc"])
def test_kernels_of_other_versions_are_refused(
    host: Host, whole_bundle: SmallBundle, two: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    out = tmp_path / "caches"
    host.run(whole_bundle, "--into", str(two[0]), "cache", "export", str(out))
    facts = json.loads((out / "key.json").read_text())
    facts["key"][name] = "another"
    (out / "key.json").write_text(json.dumps(facts))
    answer = host.run(whole_bundle, "--into", str(two[1]), "cache", "import", str(out))
    assert answer.code == 40 and f"{name}: another there" in answer.err
    assert not any((two[1] / "caches").rglob("*.cubin"))


def test_a_host_with_another_torch_refuses_them(
    host: Host, whole_bundle: SmallBundle, two: tuple[Path, Path], tmp_path: Path
) -> None:
    out = str(tmp_path / "caches")
    host.run(whole_bundle, "--into", str(two[0]), "cache", "export", out)
    answer = host.run(whole_bundle, "--into", str(two[1]), "cache", "import", out, FAKE_TORCH="2.12.0+cu130")  # fmt: skip
    assert answer.code == 40 and "torch: 2.11.0+cu130 there, 2.12.0+cu130 here" in answer.err


def test_a_damaged_archive_is_refused(
    host: Host, whole_bundle: SmallBundle, two: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "caches"
    host.run(whole_bundle, "--into", str(two[0]), "cache", "export", str(out))
    data = bytearray((out / "caches.tar.xz").read_bytes())
    data[len(data) // 2] ^= 1
    (out / "caches.tar.xz").write_bytes(data)
    answer = host.run(whole_bundle, "--into", str(two[1]), "cache", "import", str(out))
    assert answer.code == 8 and "is damaged" in answer.err


def test_exports_overwrite_nothing_and_need_something_to_export(
    host: Host, whole_bundle: SmallBundle, two: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "caches"
    out.mkdir()
    (out / "mine").write_text("mine")
    answer = host.run(whole_bundle, "--into", str(two[0]), "cache", "export", str(out))
    assert answer.code == 2 and "is not empty" in answer.err
    answer = host.run(whole_bundle, "--into", str(two[1]), "cache", "export", str(tmp_path / "new"))
    assert answer.code == 40 and "no compiled kernel" in answer.err


def test_a_run_takes_caches_when_asked_and_says_what_it_found(
    host: Host, whole_bundle: SmallBundle, two: tuple[Path, Path], tmp_path: Path
) -> None:
    words = ["--into", str(two[1]), "--no-check"]
    assert "compiled kernels: none in" in host.run(whole_bundle, *words).out
    out = str(tmp_path / "caches")
    host.run(whole_bundle, "--into", str(two[0]), "cache", "export", out)
    answer = host.run(whole_bundle, *words, "--caches", out)
    assert answer.code == 0 and "caches  3 files added" in answer.out
    assert "compiled kernels: deep_gemm 1, h20_ops 1" in answer.out


def test_folders_that_the_user_has_set_are_the_ones_in_force(
    host: Host, whole_bundle: SmallBundle, two: tuple[Path, Path], tmp_path: Path
) -> None:
    out, own = str(tmp_path / "caches"), tmp_path / "own"
    host.run(whole_bundle, "--into", str(two[0]), "cache", "export", out)
    words = ["--into", str(two[1]), "--no-check", "--caches", out]
    answer = host.run(whole_bundle, *words, DG_JIT_CACHE_DIR=str(own))
    assert answer.code == 0, answer.err
    assert (own / "k/kernel.cubin").is_file()
    assert not (two[1] / "caches/deep_gemm").exists()


def test_caches_of_other_versions_stop_a_run_before_the_check(
    host: Host, whole_bundle: SmallBundle, two: tuple[Path, Path], tmp_path: Path
) -> None:
    out = str(tmp_path / "caches")
    host.run(whole_bundle, "--into", str(two[0]), "cache", "export", out)
    words = ["--into", str(two[1]), "--caches", out]
    answer = host.run(whole_bundle, *words, FAKE_TORCH="2.11.1+cu130", FAKE_GPUS="1")
    assert answer.code == 40 and "torch: 2.11.0+cu130 there" in answer.err
    assert "CHECKED" not in answer.out


@pytest.mark.parametrize("word", ["export", "import"])
def test_caches_need_an_installed_bundle(
    host: Host, whole_bundle: SmallBundle, tmp_path: Path, word: str
) -> None:
    answer = host.run(
        whole_bundle, "--into", str(tmp_path / "no"), "cache", word, str(tmp_path / "c")
    )
    assert answer.code == 2 and "no bundle in" in answer.err
