"""The prefill kernel as the compiler sees it: tensor instructions, no spills, memory that fits."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from h20_ops.errors import CompileError
from h20_ops.jit import Artefact, CudaSource, compile_cuda, ptxas_reports
from h20_ops.sparse_mla_prefill import ENTRY, SHARED_BYTES, SOURCE, THREADS
from h20_ops.testing.machine_code import (
    ASYNC_COPY,
    LOCAL_LOAD,
    LOCAL_STORE,
    MMA,
    WGMMA,
    operations,
)

pytestmark = pytest.mark.nvcc
# What one block may have on sm_90: shared memory opted in, and registers of a multiprocessor.
BLOCK_SHARED_BYTES = 227 * 1024
REGISTERS = 65_536
# Warnings of the assembler that wgmma lost its overlap, or that setmaxnreg was ignored.
LOST_OVERLAP = ("C7508", "C7510", "C7514", "serialized", "setmaxnreg ignored")


@pytest.fixture(scope="module")
def artefact() -> Artefact:
    return compile_cuda(SOURCE)


def complaints(artefact: Artefact) -> list[str]:
    lines = artefact.read("ptxas.txt").decode().splitlines()
    return [line for line in lines if any(word in line for word in LOST_OVERLAP)]


def check_resources(artefact: Artefact) -> None:
    (report,) = ptxas_reports(artefact)
    assert (report.entry, report.arch) == (ENTRY, "sm_90a")
    spilled = (report.stack_bytes, report.spill_store_bytes, report.spill_load_bytes)
    assert spilled == (0, 0, 0), f"stack, spill stores and loads in bytes: {spilled}"
    assert report.registers * THREADS <= REGISTERS, f"{report.registers} registers at launch"
    assert complaints(artefact) == []


def test_the_kernel_keeps_everything_in_registers_and_overlaps(artefact: Artefact) -> None:
    check_resources(artefact)


def test_products_run_as_warpgroup_instructions_only(artefact: Artefact) -> None:
    counts = operations(artefact.read("kernel.cubin"), ENTRY)
    # A block of keys takes 32 instructions to score and 4 for each of two halves of values; both
    # sides have their own code.
    assert counts[WGMMA] >= 2 * (32 + 4 + 4)
    assert counts[MMA] == 0
    assert counts[ASYNC_COPY] >= 32 + 2 * 32  # q once, two key blocks a turn
    assert counts[LOCAL_LOAD] == counts[LOCAL_STORE] == 0


def test_the_shared_memory_asked_for_holds_the_layout_and_fits_a_block(tmp_path: Path) -> None:
    assert SOURCE.defines["SHARED_BYTES"] == SHARED_BYTES <= BLOCK_SHARED_BYTES
    with pytest.raises(CompileError, match="the wrapper asks for"):
        compile_cuda(replace(SOURCE, defines={"SHARED_BYTES": 64 * 1024}))


def test_a_kernel_that_spills_is_noticed(tmp_path: Path) -> None:
    squeezed = copy_of(SOURCE, tmp_path, "CONSUMER_REGISTERS = 232", "CONSUMER_REGISTERS = 160")
    artefact = compile_cuda(squeezed)
    with pytest.raises(AssertionError, match="spill stores"):
        check_resources(artefact)
    assert operations(artefact.read("kernel.cubin"), ENTRY)[LOCAL_LOAD] > 0


@pytest.mark.nvcc_full
@pytest.mark.parametrize(
    "registers,lag", list(itertools.product([(232, 40), (224, 56), (216, 72)], ["0.0f", "8.0f"]))
)
def test_other_register_splits_and_rescale_limits_compile_clean(
    tmp_path: Path, registers: tuple[int, int], lag: str
) -> None:
    consumer, producer = registers
    changed = copy_of(
        SOURCE, tmp_path, "CONSUMER_REGISTERS = 232", f"CONSUMER_REGISTERS = {consumer}"
    )
    changed = copy_of(
        changed, tmp_path, "PRODUCER_REGISTERS = 40", f"PRODUCER_REGISTERS = {producer}"
    )
    changed = copy_of(changed, tmp_path, "RESCALE_LOG2 = 8.0f", f"RESCALE_LOG2 = {lag}")
    check_resources(compile_cuda(changed))


def copy_of(source: CudaSource, folder: Path, old: str, new: str) -> CudaSource:
    """The same source with one text replaced, in a folder of its own."""
    files = source.files()
    (place,) = [name for name, text in files.items() if old in text]
    files[place] = files[place].replace(old, new)
    for name, text in files.items():
        (folder / name).write_text(text)
    return CudaSource(source.name, folder / source.path.name, source.defines)
