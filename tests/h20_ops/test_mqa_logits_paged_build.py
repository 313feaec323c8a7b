"""The paged logits' kernel as the compiler sees it, and its source run on the host against exact sums."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from h20_ops.cuda import mqa_logits_paged_kernel as kernel
from h20_ops.cuda.mqa_logits_paged_kernel import Variant
from h20_ops.errors import CompileError, UnsupportedError
from h20_ops.jit import CudaSource, compile_cuda, find_nvcc, ptxas_reports
from h20_ops.mqa_logits_paged import Call, prepare
from h20_ops.testing.machine_code import LOCAL_LOAD, LOCAL_STORE, MMA, operations
from h20_ops.testing.mqa_logits_paged_cases import PagedCase, check_row, make_paged

pytestmark = [pytest.mark.nvcc, pytest.mark.torch]
ENTRY = "mqa_logits_paged"
FP8_WGMMA = 0x1F3  # QGMMA
LOST_OVERLAP = ("C7508", "C7510", "C7512", "C7514", "C7515", "serialized")
REGISTERS = 65_536  # of a multiprocessor
SHARED_BYTES = 227 * 1024
VARIANTS = [Variant(*how) for how in itertools.product((32, 64), (True, False), (False, True))]
# Replaced on the host by tests/h20_ops/host_mqa_logits_paged.cpp.
INSTRUCTIONS = ("sm90.cuh", "mqa_logits_paged_memory.cuh", "mqa_logits_paged_wgmma.cuh")


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_variant_keeps_everything_in_registers_and_overlaps(variant: Variant) -> None:
    artefact = compile_cuda(kernel.source(variant))
    (report,) = ptxas_reports(artefact)
    spilled = (report.stack_bytes, report.spill_store_bytes, report.spill_load_bytes)
    assert spilled == (0, 0, 0) and report.arch == "sm_90a"
    blocks = kernel.BLOCKS[variant.heads]
    assert -(-report.registers // 8) * 8 * kernel.THREADS * blocks <= REGISTERS
    assert (variant.shared_bytes + 1024) * blocks <= SHARED_BYTES
    lines = artefact.read("ptxas.txt").decode().splitlines()
    assert [line for line in lines if any(word in line for word in LOST_OVERLAP)] == []
    counts = operations(artefact.read("kernel.cubin"), ENTRY)
    assert counts[FP8_WGMMA] >= 8  # two products of four steps
    assert counts[MMA] == counts[LOCAL_LOAD] == counts[LOCAL_STORE] == 0


@pytest.mark.parametrize(
    "constant,complaint",
    [("EXPECTED_SHARED_BYTES", "shared_bytes"), ("EXPECTED_PARAMS_BYTES", "Params")],
)
def test_python_and_the_source_must_agree_on_sizes(constant: str, complaint: str) -> None:
    source = kernel.source(VARIANTS[0])
    with pytest.raises(CompileError, match=complaint):
        compile_cuda(replace(source, defines={**source.defines, constant: 8}))


def on_host(folder: Path, source: CudaSource) -> Callable[[Call, int], None]:
    """Compile the source as host code; the result runs a call with so many blocks."""
    nvcc = find_nvcc()
    assert nvcc is not None, "the mark nvcc promises one"
    for name, text in source.files().items():
        (folder / name).write_text("#pragma once\n" if name in INSTRUCTIONS else text)
    library = folder / "kernel.so"
    around = Path(__file__).with_name("host_mqa_logits_paged.cpp")
    command = [str(nvcc), "-x", "c++", "-O1", "-std=c++17", "-shared", "-cudart", "none"]
    command += ["-Xcompiler", "-fPIC,-w", f"-I{folder}", "-o", str(library), str(around)]
    command += [f"-D{name}={value}" for name, value in source.defines.items()]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.run.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return lambda call, blocks: loaded.run(ctypes.addressof(call.params), blocks)


def prepared(given: dict[str, Any], dtype: torch.dtype, *, fill: bool = False) -> Call:
    lists: dict[str, Any] = {"candidate_blocks": None, "candidate_block_size": 0}
    call = prepare(**{**lists, **given}, out_dtype=dtype, fill=fill)
    call.logits.fill_(777.0)
    return call


def check_dense(run: Callable[[Call, int], None], case: PagedCase, dtype: torch.dtype) -> None:
    given = make_paged(case, "cpu")
    for blocks in (1, 3, 7):
        call = prepared(given, dtype)
        run(call, blocks)
        for row in range(case.rows):
            check_row(case.id, call.logits, given, row)
            length = min(int(given["klen"][row]), case.max_kv_len)
            behind = call.logits[row, length : -(-length // kernel.TILE) * kernel.TILE]
            assert bool((behind == -torch.inf).all())


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Call, int], None]:
    """The kernel of the engine's shapes: 32 heads, bf16, pages of whole eights."""
    return on_host(tmp_path_factory.mktemp("tuned"), kernel.source(Variant(32, True, False)))


def test_the_source_on_the_host_gives_the_exact_sums(tuned: Callable[[Call, int], None]) -> None:
    for lengths, heads in (((300, 0, 129, 1, 640, 64), 32), ((257, 8), 20)):
        case = PagedCase(rows=len(lengths), max_kv_len=640, lengths=lengths, heads=heads)
        check_dense(tuned, case, torch.bfloat16)


def test_64_heads_odd_pages_and_extreme_exponents_too(tmp_path: Path) -> None:
    run = on_host(tmp_path, kernel.source(Variant(64, False, True)))
    case = PagedCase(
        rows=3,
        max_kv_len=300,
        lengths=(300, 1, 129),
        heads=64,
        page_size=13,
        page_stride=13 * 68 + 4,
    )
    check_dense(run, case, torch.float32)
    check_dense(run, replace(case, exponents=(0, 14), query_exponents=(235, 249)), torch.float32)


def test_more_stages_change_nothing(
    tmp_path: Path, tuned: Callable[[Call, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = make_paged(PagedCase(rows=2, max_kv_len=1200, lengths=(1200, 500)), "cpu")
    plain, staged = (prepared(given, torch.bfloat16, fill=True) for _ in range(2))
    tuned(plain, 2)
    monkeypatch.setattr(kernel, "STAGES", kernel.STAGES + 1)
    on_host(tmp_path, kernel.source(Variant(32, True, False)))(staged, 2)
    assert torch.equal(plain.logits, staged.logits)


@pytest.mark.parametrize("block", [8, 16])
def test_candidates_on_the_host_are_the_dense_logits_bit_for_bit(
    block: int, tuned: Callable[[Call, int], None]
) -> None:
    lengths = (2000, 1999, 8, 0, 130)
    case = PagedCase(rows=5, max_kv_len=2000, lengths=lengths, candidates=40, block=block)
    given = make_paged(case, "cpu")
    compact = prepared(given, torch.bfloat16, fill=True)
    tuned(compact, 3)
    lists = given.pop("candidate_blocks")
    del given["candidate_block_size"]
    dense = prepared(given, torch.bfloat16, fill=True)
    tuned(dense, 5)
    columns = (lists.long().unsqueeze(-1) * block + torch.arange(block)).flatten(1)
    valid = (columns >= 0) & (columns < given["klen"].unsqueeze(1))
    want = dense.logits.gather(1, columns.clamp(0, 1999)).masked_fill(~valid, -torch.inf)
    assert torch.equal(compact.logits, want)


@pytest.mark.parametrize(
    "old,new",
    [
        ("codes >> 16", "codes >> 12"),
        ("column + i * UNIT", "column + i"),
        ("slot * 4;", "slot * 8;"),
        ("queries + 2 * step", "queries + step"),
    ],
)
def test_a_wrong_source_is_noticed_on_the_host(tmp_path: Path, old: str, new: str) -> None:
    source = kernel.source(Variant(32, True, False))
    texts = source.files()
    places = [name for name, text in texts.items() if old in text]
    assert len(places) == 1, f"{old!r} is in {places}"
    copied = tmp_path / "source"
    copied.mkdir()
    for name, text in texts.items():
        (copied / name).write_text(text.replace(old, new))
    (tmp_path / "build").mkdir()
    run = on_host(
        tmp_path / "build", CudaSource(source.name, copied / source.path.name, source.defines)
    )
    case = PagedCase(rows=2, max_kv_len=300, lengths=(300, 129))
    with pytest.raises(AssertionError, match="columns are out"):
        check_dense(run, case, torch.bfloat16)


@pytest.mark.parametrize("num_sms", [78, 132])
def test_the_grid_fills_the_card_and_no_more(num_sms: int) -> None:
    for heads in kernel.HEADS:
        full = num_sms * kernel.BLOCKS[heads]
        assert kernel.grid_size(64, 131_072, heads, num_sms) == full
        assert kernel.grid_size(1, 129, heads, num_sms) == 2
        assert kernel.grid_size(3, 1, heads, num_sms) == 3


def test_what_no_kernel_serves_is_refused() -> None:
    given = make_paged(PagedCase(rows=1, max_kv_len=8, lengths=(8,), heads=72), "cpu")
    with pytest.raises(UnsupportedError, match="72 query heads"):
        prepared(given, torch.bfloat16)
    given = make_paged(PagedCase(rows=1, max_kv_len=8, lengths=(8,)), "cpu")
    with pytest.raises(UnsupportedError, match="float16"):
        prepared(given, torch.float16)
