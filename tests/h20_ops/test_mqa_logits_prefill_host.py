"""The prefill logits kernels' own source, run as host code: index arithmetic, plans, barriers, masks."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from h20_ops.cuda.mqa_logits_prefill_call import EXPAND_THREADS, STEP_KEYS, Call, Kind, prepare
from h20_ops.cuda.mqa_logits_prefill_kernel import SOURCE
from h20_ops.jit import find_nvcc
from h20_ops.testing.mqa_logits_prefill_cases import (
    LogitsCase,
    LogitsInputs,
    check_dense,
    make_logits,
    valid_columns,
)
from h20_ops.torch_ref import mqa_logits_prefill as twin

pytestmark = [pytest.mark.nvcc, pytest.mark.torch]
HARNESS = Path(__file__).with_name("host_mqa_logits_prefill.cpp")
STOOD_IN = ("sm90.cuh", "fp8_wgmma.cuh", "mqa_logits_prefill_memory.cuh")
PROCESSORS = 3  # few, so that blocks of work are many
Run = Callable[[Call], None]


def build(folder: Path) -> Run:
    """Compile the source as C++ and return a function that runs a call's two launches."""
    for name, text in SOURCE.files().items():
        host = text.replace("__shared__ union", "static union")
        (folder / name).write_text("#pragma once\n" if name in STOOD_IN else host)
    library = folder / "kernels.so"
    command = [str(find_nvcc()), "-x", "c++", "-O2", "-std=c++17", "-shared", "-cudart", "none"]
    command += ["-Xcompiler", "-fPIC,-w", f"-I{folder}", "-o", str(library), str(HARNESS)]
    command += [f"-D{name}={value}" for name, value in SOURCE.defines.items()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    host_run = ctypes.CDLL(str(library)).run
    host_run.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int]

    def run(call: Call) -> None:
        address = ctypes.addressof(call.params)
        entry = 1 + 4 * int(call.kind) + 2 * (call.params.heads > 32) + call.fp32
        host_run(address, 0, call.expand_grid, EXPAND_THREADS)
        host_run(address, entry, call.main_grid, call.main_threads)

    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return build(tmp_path_factory.mktemp("host"))


def logits(
    run: Run, inputs: LogitsInputs, *, dtype: torch.dtype = torch.float32, kind: Kind | None = None
) -> torch.Tensor:
    """What the kernels write, NaN where they write nothing."""
    columns = inputs.max_kv_len
    if inputs.candidate_blocks is not None:
        columns = inputs.candidate_blocks.shape[1] * inputs.candidate_block_size
    per_row = 1024 // dtype.itemsize
    rows = inputs.q.shape[0]
    guarded = torch.full((rows + 2, -(-columns // per_row) * per_row), torch.nan, dtype=dtype)
    call = prepare(**inputs.kwargs(), out=guarded[1:-1], kind=kind, processors=PROCESSORS)
    call.kept[4].fill_(0xA5)
    run(call)
    assert bool(guarded[0].isnan().all()) and bool(guarded[-1].isnan().all())
    return guarded[1:-1, :columns]


DENSE = [
    LogitsCase(rows=1, keys=1),
    LogitsCase(rows=11, keys=300),
    LogitsCase(rows=5, keys=200, heads=64, ranges="ragged", seed=2),
    LogitsCase(rows=21, keys=400, ranges="odd", strided=True),
    LogitsCase(rows=9, keys=700, ranges="ragged", max_kv_len=200, seed=5),
    LogitsCase(rows=4, keys=130, heads=20, spread=30),
    LogitsCase(rows=40, keys=500, ranges="packed"),
]


@pytest.mark.parametrize("case", DENSE, ids=lambda case: case.id)
def test_dense_logits_are_the_twins(run: Run, case: LogitsCase) -> None:
    inputs = make_logits(case, "cpu")
    got = logits(run, inputs)
    check_dense(inputs, got, twin(**inputs.kwargs(), out_dtype=torch.float32))
    outside = got[~valid_columns(inputs)]
    assert bool((outside.isnan() | (outside == -torch.inf)).all())
    lengths = valid_columns(inputs).sum(1)
    for row, length in enumerate(lengths.tolist()):
        if length:
            end = -(-(int(inputs.ks[row]) + length) // STEP_KEYS) * STEP_KEYS - int(inputs.ks[row])
            assert bool((got[row, length:end] == -torch.inf).all()), "to the end of the last tile"
    assert torch.equal(
        logits(run, inputs, dtype=torch.bfloat16)[valid_columns(inputs)],
        got[valid_columns(inputs)].bfloat16(),
    )


CANDIDATES = [
    LogitsCase(rows=11, keys=900, block=8, candidates=30, ranges="odd"),
    LogitsCase(rows=9, keys=700, block=16, candidates=20, ranges="ragged", seed=3),
    LogitsCase(rows=6, keys=600, heads=64, block=8, candidates=40, ranges="odd", seed=4),
    LogitsCase(rows=2, keys=300, block=8, candidates=50, ranges="full"),
    LogitsCase(rows=3, keys=70_000, heads=20, block=8, candidates=20, ranges="full", seed=7),
]


@pytest.mark.parametrize("kind", [Kind.GATHERED, Kind.UNITED], ids=lambda kind: kind.name)
@pytest.mark.parametrize("case", CANDIDATES, ids=lambda case: case.id)
def test_candidates_are_the_dense_logits_of_their_blocks(
    run: Run, case: LogitsCase, kind: Kind
) -> None:
    inputs = make_logits(case, "cpu")
    assert inputs.candidate_blocks is not None
    inputs.candidate_blocks[inputs.candidate_blocks < 0] = 3  # what is behind the last is ignored
    got = logits(run, inputs, kind=kind)
    want = twin(**inputs.kwargs(), out_dtype=torch.float32)
    assert torch.equal(got.isfinite(), want.isfinite())
    valid = want.isfinite()
    torch.testing.assert_close(got[valid], want[valid], rtol=1e-5, atol=1e-4)
    lengths = (inputs.ke - inputs.ks).clamp(0)
    for row, length in enumerate(lengths.tolist()):
        slots = min(case.candidates, -(-length // case.block))
        end = -(-slots * case.block // 128) * 128
        assert not bool(got[row, :end].isnan().any())
    if case.keys < 2000:
        dense = logits(run, replace(inputs, candidate_blocks=None, candidate_block_size=0))
        at = (inputs.candidate_blocks.long().unsqueeze(-1) * case.block).add(
            torch.arange(case.block)
        )
        picked = dense.gather(1, at.flatten(1).clamp(0, dense.shape[1] - 1))
        assert torch.equal(got[valid], picked[valid])


def test_a_harness_that_swaps_two_heads_would_be_seen(run: Run) -> None:
    inputs = make_logits(LogitsCase(rows=3, keys=100), "cpu")
    got = logits(run, inputs)
    inputs.weights[:, [3, 17]] = inputs.weights[:, [17, 3]]
    with pytest.raises(AssertionError, match="allowed"):
        check_dense(inputs, got, twin(**inputs.kwargs(), out_dtype=torch.float32))
