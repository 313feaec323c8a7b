"""The record kernels as the compiler sees them, and their source run on the host, bit for bit."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from h20_ops.cuda.kv_records_kernel import SOURCE, SUFFIXES
from h20_ops.jit import compile_cuda, find_nvcc, ptxas_reports
from h20_ops.kv_cache import LAYOUTS, V41_FP4, V41_FP8, KvLayout, read_kv, write_kv
from h20_ops.testing.cases_decode import empty_cache
from h20_ops.testing.compare import check_bitwise
from h20_ops.testing.seeds import generator_for

pytestmark = [pytest.mark.nvcc, pytest.mark.torch]

STORE = {"v41_fp8": 0, "v41_fp4": 1}


def test_the_four_kernels_compile_for_sm90_without_spills() -> None:
    reports = {report.entry: report for report in ptxas_reports(compile_cuda(SOURCE))}
    assert set(reports) == {
        f"{verb}_{kind}" for verb in ("store", "load") for kind in SUFFIXES.values()
    }
    for report in reports.values():
        assert report.arch == "sm_90a"
        assert (report.stack_bytes, report.spill_store_bytes, report.spill_load_bytes) == (0, 0, 0)
        assert report.registers <= 64, "full occupancy of a memory-bound kernel"


def compile_for_host(folder: Path, kernels: Path) -> ctypes.CDLL:
    """Compile the source in `kernels` with the host compiler; nvcc knows where its headers are."""
    nvcc = find_nvcc()
    assert nvcc is not None, "the mark nvcc promises one"
    library = folder / "kv_records.so"
    source = Path(__file__).with_name("host_kv_records.cpp")
    command = [str(nvcc), "-x", "c++", "-O1", "-std=c++17", "-shared", "-cudart", "none"]
    command += ["-Xcompiler", "-fPIC,-w", f"-I{kernels}", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library))
    long, pointer, integer = ctypes.c_long, ctypes.c_void_p, ctypes.c_int
    loaded.run.argtypes = [integer, pointer, pointer, pointer, long, long, integer, integer]
    return loaded


@pytest.fixture(scope="module")
def on_host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels' own source, as host code."""
    return compile_for_host(tmp_path_factory.mktemp("host"), SOURCE.path.parent)


def run(
    library: ctypes.CDLL, kernel: int, cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor
) -> None:
    addresses = cache.data_ptr(), slots.data_ptr(), rows.data_ptr()
    strides = cache.stride(0), rows.stride(0)
    library.run(kernel, *addresses, *strides, cache.shape[1], rows.shape[0])


@pytest.mark.parametrize("layout", [V41_FP8, V41_FP4], ids=str)
def test_the_store_kernels_source_writes_the_twins_bytes(
    on_host: ctypes.CDLL, layout: KvLayout
) -> None:
    rng = generator_for(f"host {layout}")
    kv = torch.randn((500, 512), generator=rng)
    kv *= torch.exp2(torch.randint(-20, 21, (500, 1), generator=rng).float())
    kv[::7], kv[1::5, 64:96] = 0, 0
    rows = kv.to(torch.bfloat16)
    stride = 37 * layout.bytes_per_token + 96
    ours, twins = (empty_cache(15, 37, layout, stride) for _ in range(2))
    slots = torch.randperm(15 * 37, generator=rng)[:500].to(torch.int32)
    slots[5] = -1
    run(on_host, STORE[layout.name], ours, slots, rows)
    write_kv(twins, slots, rows, layout)
    memory = (15 * stride,), (1,)
    check_bitwise("memory", ours.as_strided(*memory), twins.as_strided(*memory))


@pytest.mark.parametrize("layout", [V41_FP8, V41_FP4], ids=str)
def test_the_load_kernels_source_reads_any_bytes_as_the_twin_does(
    on_host: ctypes.CDLL, layout: KvLayout
) -> None:
    rng = generator_for(f"host load {layout}")
    shape = (10, 37, 1, layout.bytes_per_token)
    cache = torch.randint(0, 256, shape, generator=rng).to(torch.uint8)
    slots = torch.arange(370, dtype=torch.int32)
    slots[9] = -1
    rows = torch.full((370, 512), torch.nan).to(torch.bfloat16)
    run(on_host, STORE[layout.name] + 2, cache, slots, rows)
    want = read_kv(cache, slots, layout).to(torch.bfloat16)
    check_bitwise("NaN", rows.isnan(), want.isnan())
    check_bitwise("values", rows.nan_to_num(), want.nan_to_num())


def test_a_store_with_swapped_nibbles_is_caught_on_the_host(tmp_path: Path) -> None:
    text = SOURCE.path.read_text()
    wrong = text.replace("<< (i % 8 * 4)", "<< ((i ^ 1) % 8 * 4)")
    assert wrong != text
    (tmp_path / SOURCE.path.name).write_text(wrong)
    library = compile_for_host(tmp_path, tmp_path)
    with pytest.raises(AssertionError, match=r"memory: first difference at byte"):
        test_the_store_kernels_source_writes_the_twins_bytes(library, V41_FP4)


def test_only_what_v41_stores_has_a_kernel() -> None:
    assert set(SUFFIXES) == {"v41_fp8", "v41_fp4"} < set(LAYOUTS)
