"""The top-k kernel as the compiler sees it, and its source run on the host, bit for bit."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from h20_ops.cuda import topk_kernel as kernel
from h20_ops.errors import CompileError
from h20_ops.jit import CudaSource, compile_cuda, ptxas_reports
from h20_ops.testing.compare import check_bitwise
from h20_ops.testing.machine_code import LOCAL_LOAD, LOCAL_STORE, operations
from h20_ops.testing.topk_cases import KINDS, TopkCase, make_ends, make_rows, mislead
from h20_ops.torch_ref import topk as twin
from tests.h20_ops.topk_on_host import build, run

pytestmark = pytest.mark.torch
nvcc = pytest.mark.nvcc
DTYPES = (torch.float32, torch.bfloat16)
# Everything happens within a few thousand columns: stages, a full store of candidates, clusters.
SMALL = kernel.Form(
    threads=128, stages=4, stage_bytes=8192, candidates=512, blocks_per_sm=1, histogram_bits=10
)
SM_SHARED_BYTES, SM_REGISTERS, RESERVED_BYTES = 228 * 1024, 65_536, 1024
KERNELS = kernel.source(SMALL, is_bf16=False).path.parent


FORMS = sorted({*kernel.WIDE.values(), *kernel.NARROW.values()}, key=str)


@nvcc
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.threads}-{form.candidates}")
def test_every_form_fits_its_multiprocessor_without_spills(
    form: kernel.Form, dtype: torch.dtype
) -> None:
    artefact = compile_cuda(kernel.source(form, is_bf16=dtype == torch.bfloat16))
    (report,) = ptxas_reports(artefact)
    assert report.arch == "sm_90a"
    spilled = (report.stack_bytes, report.spill_store_bytes, report.spill_load_bytes)
    assert spilled == (0, 0, 0), f"stack, spill stores and loads {spilled}"
    assert report.registers * form.threads * form.blocks_per_sm <= SM_REGISTERS
    counts = operations(artefact.read("kernel.cubin"), "topk")
    assert counts[LOCAL_LOAD] == counts[LOCAL_STORE] == 0


@pytest.mark.parametrize("forms", [kernel.WIDE, kernel.NARROW], ids=["wide", "narrow"])
def test_a_multiprocessor_holds_enough_blocks_of_a_form(forms: dict[int, kernel.Form]) -> None:
    assert list(forms) == sorted(forms) and max(forms) == 4096
    for k, form in forms.items():
        resident = SM_SHARED_BYTES // (form.shared_bytes + RESERVED_BYTES)
        assert resident >= {256: 3, 512: 2, 1024: 1}[form.threads]
        assert form.candidates >= k * 5 // 4


@nvcc
@pytest.mark.parametrize(
    "constant,value,complaint",
    [("EXPECTED_SHARED_BYTES", 65_536, "shared bytes"), ("EXPECTED_PARAMS_BYTES", 8, "Params")],
)
def test_python_and_the_source_must_agree_on_sizes(
    constant: str, value: int, complaint: str
) -> None:
    source = kernel.source(SMALL, is_bf16=False)
    with pytest.raises(CompileError, match=complaint):
        compile_cuda(replace(source, defines={**source.defines, constant: value}))


@pytest.fixture(scope="module")
def on_host(tmp_path_factory: pytest.TempPathFactory) -> dict[torch.dtype, ctypes.CDLL]:
    """The kernel's own source as host code, in the small form."""
    folder = tmp_path_factory.mktemp("host")
    return {dtype: build(folder, KERNELS, SMALL, dtype) for dtype in DTYPES}


def check(
    library: ctypes.CDLL,
    case: TopkCase,
    rows: torch.Tensor | None = None,
    *,
    blocks: int = 1,
) -> None:
    """Run a case on the host and compare it with the twin."""
    rows = make_rows(case) if rows is None else rows
    got = run(library, case, rows, blocks=blocks, seed=blocks)
    flags = torch.zeros(case.rows, dtype=torch.bool)
    values, indices = twin(
        rows,
        case.k,
        end=make_ends(case),
        sorted=case.sorted,
        indices_type=torch.int32,
        output_idx_offset=torch.arange(case.rows, dtype=torch.int32) * 1000,
        nan_rows=flags,
    )
    assert values is not None
    check_bitwise("indices", got[1], indices)
    check_bitwise("values", got[0], values)
    check_bitwise("flags", got[2], flags.to(torch.uint8))


@nvcc
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernels_source_gives_its_twins_bits(
    on_host: dict[torch.dtype, ctypes.CDLL], kind: str, dtype: torch.dtype
) -> None:
    case = TopkCase(rows=1, columns=12_001, k=200, kind=kind, dtype=dtype, shift=3)
    for blocks, sorted in ((1, False), (2, True)):
        check(on_host[dtype], replace(case, sorted=sorted), blocks=blocks)


@nvcc
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("blocks", [1, 4, 8])
def test_rows_of_all_lengths(
    on_host: dict[torch.dtype, ctypes.CDLL], blocks: int, dtype: torch.dtype
) -> None:
    case = TopkCase(rows=8, columns=5000, k=300, kind="nan", dtype=dtype, ends=True, pad=1)
    check(on_host[dtype], case, blocks=blocks)


@nvcc
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("blocks,sorted", [(1, False), (2, False), (2, True)])
def test_rows_that_mislead_the_guess_are_read_again(
    on_host: dict[torch.dtype, ctypes.CDLL], sorted: bool, blocks: int, dtype: torch.dtype
) -> None:
    case = TopkCase(rows=4, columns=20_000, k=300, dtype=dtype, sorted=sorted)
    rows = make_rows(case)
    mislead(rows, SMALL.threads, blocks)
    check(on_host[dtype], case, rows, blocks=blocks)


@nvcc
def test_a_guess_that_is_never_doubted_is_noticed(tmp_path: Path) -> None:
    library = changed(
        tmp_path,
        "cut.sure = guess == 0;\n    return cut;\n  }\n  cut.found = p.k;\n  spread",
        "return cut;\n  }\n  cut.found = p.k;\n  spread",
    )
    case = TopkCase(rows=1, columns=20_000, k=300)
    rows = make_rows(case)
    mislead(rows, SMALL.threads, 1)
    with pytest.raises(AssertionError, match="first difference"):
        check(library, case, rows)


@nvcc
@pytest.mark.parametrize(
    "old,new,kind",
    [
        ("(last - column)", "column", "equal"),
        ("column < end", "column <= end", "normal"),
        ("s.bitmap[i] = 0;\n    __syncthreads();", "s.bitmap[i] = 0;", "normal"),
    ],
    ids=["ties to the higher column", "one column too many", "a barrier less"],
)
def test_a_mistake_in_the_source_is_noticed_on_the_host(
    tmp_path: Path, old: str, new: str, kind: str
) -> None:
    library = changed(tmp_path, old, new)
    case = TopkCase(rows=1, columns=12_001, k=200, kind=kind)
    with pytest.raises(AssertionError, match="first difference"):
        check(library, case)


def changed(folder: Path, old: str, new: str) -> ctypes.CDLL:
    """The source with one text replaced, as host code."""
    count = 0
    for name, text in kernel.source(SMALL, is_bf16=False).files().items():
        count += text.count(old)
        (folder / name).write_text(text.replace(old, new))
    assert count == 1, f"{old!r} stands {count} times in the source"
    return build(folder, folder, SMALL, torch.float32)


@pytest.mark.parametrize("num_sms", [78, 132])
def test_rows_are_cut_while_there_is_room_and_enough_to_read(num_sms: int) -> None:
    assert kernel.plan(4096, 32_768, 512, num_sms) == (kernel.NARROW[512], 1)
    assert kernel.plan(8, 131_072, 512, num_sms) == (kernel.WIDE[512], 8)
    assert kernel.plan(1, 512, 4096, num_sms) == (kernel.WIDE[4096], 1)
    for rows, columns, k in itertools.product((1, 7, 64, 300), (100, 16_384, 1 << 20), (1, 513)):
        form, blocks = kernel.plan(rows, columns, k, num_sms)
        assert form.candidates > k
        assert blocks in (1, 2, 4, 8) and (blocks == 1 or rows * blocks <= num_sms)


def test_columns_fit_their_bits() -> None:
    for columns in (0, 1, 2, 3, 4, 5, 1 << 20, (1 << 23) - 1, 1 << 23):
        bits = kernel.column_bits(columns)
        assert 1 <= bits <= 23 and columns <= 2**bits and (bits == 1 or columns > 2 ** (bits - 1))


@pytest.mark.parametrize(
    "value", [0.0, -0.0, -torch.inf, torch.nan, 1e39, -1e39, 1.00390626, 3e-41]
)
def test_fills_have_the_bits_that_torch_gives_them(value: float) -> None:
    for dtype, as_int in ((torch.float32, torch.int32), (torch.bfloat16, torch.int16)):
        want = int(torch.tensor(value, dtype=torch.float64).to(dtype).view(as_int))
        got = kernel.value_bits(value, is_bf16=dtype == torch.bfloat16)
        assert got == want % (1 << 8 * as_int.itemsize), (value, dtype)


def test_the_source_has_no_name_for_each_form_of_its_own() -> None:
    forms = [kernel.source(form, is_bf16=bf16) for form in FORMS for bf16 in (False, True)]
    assert len({source.key() for source in forms}) == len(forms)
    assert all(isinstance(source, CudaSource) and source.name == "topk" for source in forms)
