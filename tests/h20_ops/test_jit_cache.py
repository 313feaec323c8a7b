"""The cache of compiled kernels: built once, whole or absent, movable to a host without nvcc."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from h20_ops.errors import CompileError, DependencyError
from h20_ops.jit import (
    CudaSource,
    compile_cuda,
    export_artefacts,
    get_or_build,
    import_artefacts,
    ptxas_reports,
)
from h20_ops.jit.cache import hash_parts


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("H20_OPS_CACHE_DIR", str(folder))
    return folder


def write_source(folder: Path, body: str = "int x;", header: str = "#pragma once\n") -> CudaSource:
    folder.mkdir(exist_ok=True)
    (folder / "part.cuh").write_text(header)
    path = folder / "kernel.cu"
    path.write_text(f'#include "part.cuh"\n{body}\n')
    return CudaSource("kernel", path, {"N": 4})


def _ask_for_it(log: str) -> None:
    def build() -> dict[str, bytes]:
        with open(log, "a") as handle:  # noqa: PTH123 - one short append per process
            handle.write(f"{os.getpid()}\n")
        time.sleep(0.3)
        return {"a": b"1" * 1000, "b": b"2"}

    artefact = get_or_build("slow", "key", "compiler 1", build)
    assert artefact.read("a") == b"1" * 1000 and artefact.read("b") == b"2"


def test_eight_processes_build_an_artefact_once(tmp_path: Path) -> None:
    log = tmp_path / "builds"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_ask_for_it, args=(str(log),)) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 8
    assert len(log.read_text().split()) == 1


def test_a_failed_build_leaves_nothing_and_the_next_one_works(cache: Path) -> None:
    def fail() -> dict[str, bytes]:
        raise CompileError("x", "y", "z")

    with pytest.raises(CompileError):
        get_or_build("name", "key", "compiler 1", fail)
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []
    assert get_or_build("name", "key", "compiler 1", lambda: {"a": b"1"}).built


def test_another_compiler_builds_again_and_the_same_one_does_not() -> None:
    assert get_or_build("name", "key", "compiler 1", lambda: {"a": b"1"}).built
    assert not get_or_build("name", "key", "compiler 1", lambda: {"a": b"2"}).built
    assert get_or_build("name", "key", "compiler 2", lambda: {"a": b"3"}).built


def test_without_a_compiler_the_newest_build_of_the_same_source_serves(cache: Path) -> None:
    get_or_build("name", "key", "compiler 1", lambda: {"a": b"1"})
    newer = get_or_build("name", "key", "compiler 2", lambda: {"a": b"2"})
    os.utime(newer.path, (time.time() + 5, time.time() + 5))
    found = get_or_build("name", "key", None, lambda: {"a": b"never"})
    assert found.read("a") == b"2" and not found.built
    with pytest.raises(DependencyError, match="import_artefacts"):
        get_or_build("name", "other", None, lambda: {"a": b"never"})


def test_exported_artefacts_serve_a_host_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_or_build("first", "key", "compiler 1", lambda: {"a": b"1"})
    get_or_build("second-part", "key", "compiler 1", lambda: {"a": b"2"})
    archive = tmp_path / "kernels.tar.gz"
    assert len(export_artefacts(archive, ["second-part"])) == 1
    monkeypatch.setenv("H20_OPS_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert len(import_artefacts(archive)) == 1
    assert import_artefacts(archive) == []
    assert get_or_build("second-part", "key", None, dict).read("a") == b"2"
    with pytest.raises(DependencyError):
        get_or_build("first", "key", None, dict)


def test_an_archive_that_is_none_and_an_empty_export_say_what_to_do(tmp_path: Path) -> None:
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(b"no archive")
    with pytest.raises(DependencyError, match="export_artefacts"):
        import_artefacts(broken)
    with pytest.raises(DependencyError, match="run the operators once"):
        export_artefacts(tmp_path / "empty.tar.gz")


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("H20_OPS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(DependencyError, match="H20_OPS_CACHE_DIR"):
        get_or_build("name", "key", "compiler 1", lambda: {"a": b"1"})


def test_source_constants_and_headers_all_change_the_key(tmp_path: Path) -> None:
    source = write_source(tmp_path / "s")
    keys = {source.key(), CudaSource("kernel", source.path, {"N": 5}).key()}
    keys.add(write_source(tmp_path / "s", body="int y;").key())
    keys.add(write_source(tmp_path / "s", body="int y;", header="#pragma once\n// new\n").key())
    assert len(keys) == 4
    assert write_source(tmp_path / "t").key() == write_source(tmp_path / "u").key()


def test_moving_a_character_between_parts_changes_the_hash() -> None:
    assert hash_parts("ab", "c") != hash_parts("a", "bc")


@pytest.mark.nvcc
def test_nvcc_output_is_kept_with_its_resource_report(tmp_path: Path) -> None:
    body = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
    source = write_source(tmp_path / "s", body=body)
    artefact = compile_cuda(source)
    assert artefact.read("kernel.cubin")[:4] == b"\x7fELF"
    (report,) = ptxas_reports(artefact)
    assert (report.entry, report.arch) == ("twice", "sm_90a")
    assert report.registers > 0 and report.spill_store_bytes == 0
    assert not compile_cuda(source).built


@pytest.mark.nvcc
def test_a_source_that_does_not_compile_shows_the_compilers_words(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="unknown_name"):
        compile_cuda(write_source(tmp_path / "s", body="int x = unknown_name;"))
