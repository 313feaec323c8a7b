"""The decode kernel as the compiler sees it: tensor instructions, no spills, memory that fits."""

from __future__ import annotations

import ctypes
import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

from h20_ops.cuda import sparse_mla_decode_kernel as kernel
from h20_ops.errors import CompileError
from h20_ops.jit import Artefact, CudaSource, compile_cuda, ptxas_reports
from h20_ops.testing.machine_code import LOCAL_LOAD, LOCAL_STORE, MMA, WGMMA, operations

nvcc = pytest.mark.nvcc
# What one block may have on sm_90: shared memory opted in, and registers of a multiprocessor.
BLOCK_SHARED_BYTES = 227 * 1024
REGISTERS = 65_536
# Warnings of the assembler that wgmma lost its overlap, or that setmaxnreg was ignored.
LOST_OVERLAP = ("C7508", "C7510", "C7512", "C7514", "C7515", "serialized", "setmaxnreg ignored")
MAIN, COMBINE = "sparse_mla_decode", "sparse_mla_decode_combine"


def check_resources(artefact: Artefact) -> None:
    reports = {report.entry: report for report in ptxas_reports(artefact)}
    assert set(reports) == {MAIN, COMBINE}
    for report in reports.values():
        spilled = (report.stack_bytes, report.spill_store_bytes, report.spill_load_bytes)
        assert spilled == (0, 0, 0), f"{report.entry}: stack, spill stores and loads {spilled}"
        assert report.arch == "sm_90a"
    assert reports[MAIN].registers * kernel.THREADS <= REGISTERS
    lines = artefact.read("ptxas.txt").decode().splitlines()
    complaints = [line for line in lines if any(word in line for word in LOST_OVERLAP)]
    assert complaints == []


@nvcc
@pytest.mark.parametrize("extra_kind", kernel.EXTRA_KINDS.values())
def test_every_kind_keeps_everything_in_registers_and_overlaps(extra_kind: int) -> None:
    artefact = compile_cuda(kernel.source(extra_kind))
    check_resources(artefact)
    counts = operations(artefact.read("kernel.cubin"), MAIN)
    # 32 instructions score a block, at either of two places; 8 multiply it, likewise.
    assert counts[WGMMA] == 2 * 32 + 2 * 8
    assert counts[MMA] == counts[LOCAL_LOAD] == counts[LOCAL_STORE] == 0


@nvcc
@pytest.mark.parametrize(
    "constant,value,complaint",
    [("EXPECTED_SHARED_BYTES", 65_536, "SHARED_BYTES"), ("EXPECTED_PARAMS_BYTES", 8, "Params")],
)
def test_python_and_the_source_must_agree_on_sizes(
    constant: str, value: int, complaint: str
) -> None:
    source = kernel.source(0)
    with pytest.raises(CompileError, match=complaint):
        compile_cuda(replace(source, defines={**source.defines, constant: value}))


@nvcc
def test_a_kernel_that_spills_is_noticed(tmp_path: Path) -> None:
    squeezed = copy_of(
        kernel.source(0), tmp_path, "CONSUMER_REGISTERS = 192", "CONSUMER_REGISTERS = 168"
    )
    with pytest.raises(AssertionError, match="spill stores"):
        check_resources(compile_cuda(squeezed))


@nvcc
@pytest.mark.nvcc_full
@pytest.mark.parametrize(
    "extra_kind,lag", list(itertools.product((0, 1, 2), ("0.0f", "4.0f", "8.0f")))
)
def test_other_rescale_limits_compile_clean(tmp_path: Path, extra_kind: int, lag: str) -> None:
    source = kernel.source(extra_kind)
    changed = copy_of(source, tmp_path, "RESCALE_AFTER = 8.0f", f"RESCALE_AFTER = {lag}")
    check_resources(compile_cuda(changed))


def test_the_shared_memory_asked_for_fits_a_block() -> None:
    assert kernel.SHARED_BYTES <= BLOCK_SHARED_BYTES
    assert ctypes.sizeof(kernel.Params) <= 4096  # of kernel arguments


@pytest.mark.parametrize(
    "divisor", [1, 2, 3, 5, 61, 64, 128, 129, 133, 134, 576, 100_003, 2**31 - 1]
)
def test_division_by_a_page_size_is_exact_for_every_slot_number(divisor: int) -> None:
    multiplier, shift = kernel.divider(divisor)
    assert 0 < multiplier < 2**32 and 0 <= shift <= 31
    highest = 2**31 - 1
    edges = {0, 1, divisor - 1, divisor, divisor + 1, highest, highest // divisor * divisor - 1}
    draws = random.Random(divisor)
    for slot in edges | {draws.randrange(2**31) for _ in range(2000)}:
        if 0 <= slot <= highest:
            assert slot * multiplier >> (31 + shift) == slot // divisor, slot


@pytest.mark.parametrize("num_sms", [78, 132])
def test_splits_fill_the_card_at_small_batches_and_vanish_at_large_ones(num_sms: int) -> None:
    widths = [(128, 0), (128, 512), (1024, 0), (2048, 2048)]
    for topk, extra_topk in widths:
        chosen = [
            kernel.choose_splits(rows, topk, extra_topk, num_sms, False)
            for rows in (1, 4, 16, 64, 10 * num_sms)
        ]
        blocks = -(-topk // 64) - (-extra_topk // 64)
        assert all(1 <= splits <= min(blocks, kernel.MAX_SPLITS) for splits in chosen)
        assert chosen == sorted(chosen, reverse=True) and chosen[-1] == 1
    assert kernel.choose_splits(1, 1024, 0, num_sms, False) == 16


def test_batch_invariant_splits_depend_on_the_widths_alone() -> None:
    for topk, extra_topk in [(128, 0), (128, 512), (1024, 0), (2048, 2048), (8192, 8192)]:
        chosen = {
            kernel.choose_splits(rows, topk, extra_topk, num_sms, True)
            for rows in (1, 7, 132, 5000)
            for num_sms in (78, 132)
        }
        assert len(chosen) == 1
        (splits,) = chosen
        assert -(-(topk + extra_topk) // 64 // splits) <= kernel.MAX_BLOCKS


def copy_of(source: CudaSource, folder: Path, old: str, new: str) -> CudaSource:
    """The same source with one text replaced, in a folder of its own."""
    files = source.files()
    (place,) = [name for name, text in files.items() if old in text]
    files[place] = files[place].replace(old, new)
    for name, text in files.items():
        (folder / name).write_text(text)
    return CudaSource(source.name, folder / source.path.name, source.defines)
