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
    FORMS,
    PATH,
    Form,
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
KERNELS = [
    (form, kind, heads, dtype)
    for heads, form in FORMS.items()
    for kind in ("dense", "united", "gathered")
    for dtype in ("bf16", "fp32")
]


def complaints(artefact: Artefact) -> list[str]:
    lines = artefact.read("ptxas.txt").decode().splitlines()
    return [line for line in lines if any(word in line for word in LOST_OVERLAP)]


@pytest.mark.parametrize("form,kind,heads,dtype", KERNELS, ids=str)
def test_a_kernel_fits_its_block_and_keeps_everything_in_registers(
    form: Form, kind: str, heads: int, dtype: str
) -> None:
    artefact = compile_cuda(form.source)
    reports = {report.entry: report for report in ptxas_reports(artefact)}
    threads = 2 * CANDIDATE_THREADS if kind == "gathered" else form.threads
    for name, most in ((EXPAND, EXPAND_THREADS), (entry(kind, heads, dtype), threads)):
        report = reports[name]
        assert report.arch == "sm_90a"
        spilled = (report.stack_bytes, report.spill_store_bytes, report.spill_load_bytes)
        assert spilled == (0, 0, 0), f"{name}: stack, spill stores and loads in bytes: {spilled}"
        assert report.registers * most <= REGISTERS, f"{name}: {report.registers}"
    assert complaints(artefact) == []


@pytest.mark.parametrize("form,kind,heads,dtype", KERNELS, ids=str)
def test_products_run_as_fp8_warpgroup_instructions_only(
    form: Form, kind: str, heads: int, dtype: str
) -> None:
    code = compile_cuda(form.source).read("kernel.cubin")
    counts = operations(code, entry(kind, heads, dtype))
    # The 128 channels of a tile are four instructions.
    assert counts[FP8_WGMMA] % 4 == 0 and counts[FP8_WGMMA] > 0
    assert counts[MMA] == counts[WGMMA] == 0
    assert counts[LOCAL_LOAD] == counts[LOCAL_STORE] == 0


def test_the_shared_memory_asked_for_holds_the_layout_and_fits_a_processor() -> None:
    assert all(form.shared_bytes <= BLOCK_SHARED_BYTES for form in FORMS.values())
    assert 2 * CANDIDATE_SHARED_BYTES <= BLOCK_SHARED_BYTES
    for name in ("DENSE_SHARED_BYTES", "CANDIDATE_SHARED_BYTES"):
        source = FORMS[64].source
        with pytest.raises(CompileError, match="the wrapper asks for too little"):
            compile_cuda(replace(source, defines={**source.defines, name: 32 * 1024}))


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
        Form(),
        Form(saturate=0),
        Form(math_warpgroups=2, stages=6, overlap=1),
        Form(math_warpgroups=2, stages=6, overlap=2),
        Form(math_warpgroups=4, stages=6, split=1),
        Form(math_warpgroups=4, stages=3, weights_in_shared=1),
    ],
    ids=str,
)
def test_other_divisions_of_a_processor_compile_clean(form: Form) -> None:
    artefact = compile_cuda(form.source)
    assert complaints(artefact) == []
    assert all(report.spill_store_bytes == 0 for report in ptxas_reports(artefact))


def test_a_kernel_that_spills_is_noticed(tmp_path: Path) -> None:
    source = FORMS[64].source
    for name, text in source.files().items():
        (tmp_path / name).write_text(text.replace("== 3 ? 160", "== 3 ? 120"))
    artefact = compile_cuda(replace(source, path=tmp_path / PATH.name))
    assert any(report.spill_store_bytes for report in ptxas_reports(artefact))
