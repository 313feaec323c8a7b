"""The prefill logits kernels as the compiler sees them: FP8 tensor instructions, no spills, overlap kept."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from pathlib import Path

import pytest

from h20_ops.cuda.mqa_logits_prefill_kernel import (
    CANDIDATE_SHARED_BYTES,
    CANDIDATE_THREADS,
    EXPAND,
    EXPAND_THREADS,
    FORM,
    PATH,
    Params,
    entry,
)
from h20_ops.errors import CompileError
from h20_ops.jit import Artefact, compile_cuda, ptxas_reports
from h20_ops.testing.machine_code import LOCAL_LOAD, LOCAL_STORE, MMA, WGMMA, operations

pytestmark = pytest.mark.nvcc
FP8_WGMMA = 0x1F3  # QGMMA
BLOCK_SHARED_BYTES = 227 * 1024
REGISTERS = 65_536
LOST_OVERLAP = ("C7508", "C7510", "C7514", "serialized", "setmaxnreg ignored")
FORMS = [(heads, dtype) for heads in (32, 64) for dtype in ("bf16", "fp32")]


@pytest.fixture(scope="module")
def artefact() -> Artefact:
    return compile_cuda(FORM.source)


def complaints(artefact: Artefact) -> list[str]:
    lines = artefact.read("ptxas.txt").decode().splitlines()
    return [line for line in lines if any(word in line for word in LOST_OVERLAP)]


def test_every_kernel_fits_its_block_and_keeps_everything_in_registers(artefact: Artefact) -> None:
    reports = {report.entry: report for report in ptxas_reports(artefact)}
    threads = {EXPAND: EXPAND_THREADS}
    threads |= {entry("dense", *form): FORM.threads for form in FORMS}
    threads |= {entry("united", *form): FORM.threads for form in FORMS}
    threads |= {entry("gathered", *form): 2 * CANDIDATE_THREADS for form in FORMS}
    assert set(reports) == set(threads)
    for name, report in reports.items():
        assert report.arch == "sm_90a"
        spilled = (report.stack_bytes, report.spill_store_bytes, report.spill_load_bytes)
        assert spilled == (0, 0, 0), f"{name}: stack, spill stores and loads in bytes: {spilled}"
        assert report.registers * threads[name] <= REGISTERS, f"{name}: {report.registers}"
    assert complaints(artefact) == []


def test_products_run_as_fp8_warpgroup_instructions_only(artefact: Artefact) -> None:
    code = artefact.read("kernel.cubin")
    for form in FORMS:
        dense = operations(code, entry("dense", *form))
        candidates = operations(code, entry("gathered", *form))
        # 128 channels are four instructions; a step is two tiles of 128 columns when dense.
        assert dense[FP8_WGMMA] % 8 == 0 and dense[FP8_WGMMA] > 0
        assert candidates[FP8_WGMMA] % 4 == 0 and candidates[FP8_WGMMA] > 0
        for counts in (dense, candidates):
            assert counts[MMA] == counts[WGMMA] == 0
            assert counts[LOCAL_LOAD] == counts[LOCAL_STORE] == 0


def test_the_shared_memory_asked_for_holds_the_layout_and_fits_a_processor() -> None:
    assert FORM.shared_bytes <= BLOCK_SHARED_BYTES
    assert 2 * CANDIDATE_SHARED_BYTES <= BLOCK_SHARED_BYTES
    for name in ("DENSE_SHARED_BYTES", "CANDIDATE_SHARED_BYTES"):
        defines = {**FORM.source.defines, name: 32 * 1024}
        with pytest.raises(CompileError, match="the wrapper asks for too little"):
            compile_cuda(replace(FORM.source, defines=defines))


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
@pytest.mark.parametrize(
    "form",
    [
        replace(FORM, overlap=1),
        replace(FORM, overlap=2),
        replace(FORM, math_warpgroups=3, stages=4, overlap=0),
        replace(FORM, math_warpgroups=4, stages=3, overlap=0, weights_in_shared=1),
    ],
    ids=str,
)
def test_other_divisions_of_a_processor_compile_clean(form: object) -> None:
    artefact = compile_cuda(form.source)  # type: ignore[attr-defined]
    assert complaints(artefact) == []
    assert all(report.spill_store_bytes == 0 for report in ptxas_reports(artefact))


def test_a_kernel_that_spills_is_noticed(tmp_path: Path) -> None:
    files = FORM.source.files()
    for name, text in files.items():
        changed = text.replace("MATH_WARPGROUPS == 2 ? 232", "MATH_WARPGROUPS == 2 ? 160")
        (tmp_path / name).write_text(changed)
    artefact = compile_cuda(replace(FORM.source, path=tmp_path / PATH.name))
    assert any(report.spill_store_bytes for report in ptxas_reports(artefact))
