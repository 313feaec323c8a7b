"""The prefill logits kernels as the compiler sees them: FP8 tensor instructions, no spills, overlap kept."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from pathlib import Path

import pytest

from h20_ops.cuda.mqa_logits_prefill_call import CANDIDATE_THREADS, EXPAND_THREADS, THREADS, Params
from h20_ops.cuda.mqa_logits_prefill_kernel import (
    CANDIDATE_SHARED_BYTES,
    DENSE_SHARED_BYTES,
    EXPAND,
    PATH,
    SOURCE,
    entry,
)
from h20_ops.errors import CompileError
from h20_ops.jit import Artefact, CudaSource, compile_cuda, ptxas_reports
from h20_ops.testing.machine_code import LOCAL_LOAD, LOCAL_STORE, MMA, WGMMA, operations

pytestmark = pytest.mark.nvcc
FP8_WGMMA = 0x1F3  # QGMMA
BLOCK_SHARED_BYTES = 227 * 1024
REGISTERS = 65_536
LOST_OVERLAP = ("C7508", "C7510", "C7514", "serialized", "setmaxnreg ignored")
KERNELS = [
    (kind, heads, dtype)
    for kind in ("dense", "united", "gathered")
    for heads in (32, 64)
    for dtype in ("bf16", "fp32")
]


def complaints(artefact: Artefact) -> list[str]:
    lines = artefact.read("ptxas.txt").decode().splitlines()
    return [line for line in lines if any(word in line for word in LOST_OVERLAP)]


@pytest.mark.parametrize("kind,heads,dtype", KERNELS, ids=str)
def test_a_kernel_fits_its_block_and_keeps_everything_in_registers(
    kind: str, heads: int, dtype: str
) -> None:
    artefact = compile_cuda(SOURCE)
    reports = {report.entry: report for report in ptxas_reports(artefact)}
    threads = 2 * CANDIDATE_THREADS if kind == "gathered" else THREADS
    for name, most in ((EXPAND, EXPAND_THREADS), (entry(kind, heads, dtype), threads)):
        report = reports[name]
        assert report.arch == "sm_90a"
        spilled = (report.stack_bytes, report.spill_store_bytes, report.spill_load_bytes)
        assert spilled == (0, 0, 0), f"{name}: stack, spill stores and loads in bytes: {spilled}"
        assert report.registers * most <= REGISTERS, f"{name}: {report.registers}"
    assert complaints(artefact) == []


@pytest.mark.parametrize("kind,heads,dtype", KERNELS, ids=str)
def test_products_run_as_fp8_warpgroup_instructions_only(kind: str, heads: int, dtype: str) -> None:
    code = compile_cuda(SOURCE).read("kernel.cubin")
    counts = operations(code, entry(kind, heads, dtype))
    # The 128 channels of a tile are four instructions.
    assert counts[FP8_WGMMA] % 4 == 0 and counts[FP8_WGMMA] > 0
    assert counts[MMA] == counts[WGMMA] == 0
    assert counts[LOCAL_LOAD] == counts[LOCAL_STORE] == 0


def test_the_shared_memory_asked_for_holds_the_layout_and_fits_a_processor() -> None:
    assert DENSE_SHARED_BYTES <= BLOCK_SHARED_BYTES
    assert 2 * CANDIDATE_SHARED_BYTES <= BLOCK_SHARED_BYTES
    for name in ("DENSE_SHARED_BYTES", "CANDIDATE_SHARED_BYTES"):
        with pytest.raises(CompileError, match="the wrapper asks for too little"):
            compile_cuda(replace(SOURCE, defines={**SOURCE.defines, name: 32 * 1024}))


def test_the_argument_structure_is_that_of_the_source() -> None:
    """Names and order of the fields; sizes follow from the kinds of C types used."""
    text = PATH.with_name("mqa_logits_prefill_layout.cuh").read_text()
    body = re.search(r"struct Params \{(.*?)\n\};", text, re.DOTALL)
    assert body is not None
    sizes = {"int": 4, "int64_t": 8}
    declared = [
        (match[2], sizes.get(match[1], 8))
        for match in re.finditer(r"^  (?:const )?(\w+\*?) (\w+);", body[1], re.MULTILINE)
    ]
    ours = [(field[0], ctypes.sizeof(field[1])) for field in Params._fields_]
    assert ours == declared


@pytest.mark.nvcc_full
@pytest.mark.parametrize("change", [("SATURATE = 1", "SATURATE = 0"), ("STAGES = 5", "STAGES = 3")])
def test_other_constants_compile_clean(tmp_path: Path, change: tuple[str, str]) -> None:
    artefact = compile_cuda(copy_of(tmp_path, *change))
    assert complaints(artefact) == []
    assert all(report.spill_store_bytes == 0 for report in ptxas_reports(artefact))


def test_a_kernel_that_spills_is_noticed(tmp_path: Path) -> None:
    artefact = compile_cuda(copy_of(tmp_path, "MATH_REGISTERS = 160", "MATH_REGISTERS = 120"))
    assert any(report.spill_store_bytes for report in ptxas_reports(artefact))


def copy_of(folder: Path, old: str, new: str) -> CudaSource:
    """The same source with one text replaced, in a folder of its own."""
    files = SOURCE.files()
    assert any(old in text for text in files.values())
    for name, text in files.items():
        (folder / name).write_text(text.replace(old, new))
    return replace(SOURCE, path=folder / PATH.name)
