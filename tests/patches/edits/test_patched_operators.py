"""Patched call sites of operators on a CPU: index logits, local buffers, Engram rows, vision."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patches.edits.patched_code import function, platform

torch = pytest.importorskip("torch", exc_type=ImportError)
pytestmark = pytest.mark.torch

V4 = "deepinfer/model_executor/models/v4_modules"
DEVICE = "deep_cluster/hardware/device.py"
UTILS = "deepinfer/utils.py"
USERBUFFER = "deepinfer/model_executor/parallel_utils/userbuffer.py"


def operator(name: str) -> Any:
    """Give an operator's module: the package's own attribute of that name is the function."""
    importlib.import_module(f"h20_ops.{name}")
    return sys.modules[f"h20_ops.{name}"]


def index_layer(ratio: str = "1") -> SimpleNamespace:
    return SimpleNamespace(ratio_key=ratio, max_kv_len=64)


def test_prefill_logits_take_the_chunk_of_every_row_and_its_candidates(
    patched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    signature = inspect.signature(operator("mqa_logits_prefill").mqa_logits_prefill)

    def logits(*arguments: Any, **keywords: Any) -> str:
        signature.bind(*arguments, **keywords)
        seen.update(keywords, arguments=arguments)
        return "logits"

    monkeypatch.setattr(operator("mqa_logits_prefill"), "mqa_logits_prefill", logits)
    score = function(
        patched,
        f"{V4}/index_attn.py",
        "MQA._compute_prefill_p_sum",
        PLATFORM=platform(),
        torch=torch,
    )
    q, q_sf = torch.zeros(6, 32, 64, dtype=torch.int8), torch.zeros(6, 32, dtype=torch.int32)
    metadata = SimpleNamespace(ks={"1": torch.arange(6)}, ke={"1": torch.arange(6) + 10})
    candidates = torch.arange(12).view(6, 2)
    chunk = slice(2, 5)
    kv = (torch.zeros(40, 64), torch.zeros(40))
    weights = torch.zeros(6, 32)
    for given in (None, candidates):
        assert (
            score(index_layer(), (q, q_sf), kv, weights, metadata, chunk, given, 8, None)
            == "logits"
        )
        assert [each.shape[0] for each in seen["arguments"]] == [3, 3, 40, 40, 3, 3, 3]
        assert seen["arguments"][5].tolist() == [2, 3, 4]
        assert seen["max_kv_len"] == 64
    assert seen["candidate_blocks"].tolist() == [[4, 5], [6, 7], [8, 9]]
    assert seen["candidate_block_size"] == 8
    with pytest.raises(AssertionError, match="FP4"):
        score(index_layer(), (q.float(), q_sf), kv, weights, metadata, chunk, None, 0, None)


def test_decode_logits_read_the_engines_own_pages(
    patched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from h20_ops.torch_ref.mqa_logits_paged import mqa_logits_paged as twin

    monkeypatch.setattr(operator("mqa_logits_paged"), "mqa_logits_paged", twin)
    names = {"PLATFORM": platform(), "torch": torch}
    decode = function(patched, f"{V4}/index_attn.py", "MQA._compute_decode_p_sum", **names)
    block = torch.zeros(3, 1000 * 68, dtype=torch.uint8)  # pages lie far apart, as in the engine
    cache = block.as_strided((3, 128, 1, 68), (1000 * 68, 68, 68, 1))
    q = torch.zeros(2, 32, 64, dtype=torch.int8)
    q_sf = torch.full((2, 32), 0x7F7F7F7F, dtype=torch.int32)
    metadata = SimpleNamespace(
        klen={"1": torch.tensor([5, 0], dtype=torch.int32)},
        block_tables=torch.tensor([[1], [0]], dtype=torch.int32),
    )
    weights = torch.ones(2, 32, dtype=torch.bfloat16)
    out = decode(index_layer(), (q, q_sf), cache, weights, metadata, None, None, 0)
    assert (out.shape, out.dtype) == ((2, 64), torch.bfloat16)
    assert out[0, :5].tolist() == [0.0] * 5
    with pytest.raises(AssertionError, match="132 bytes"):
        wide = torch.zeros(3, 128, 1, 132, dtype=torch.uint8)
        decode(index_layer(), (q, q_sf), wide, weights, metadata, None, None, 0)


def test_no_schedule_is_made_and_blocks_must_not_cross_pages(patched: Path) -> None:
    plan = function(
        patched, f"{V4}/index_attn.py", "MQA._get_decode_metadata", PLATFORM=platform(), torch=torch
    )
    assert plan(index_layer(), torch.int8, 64, None, torch.zeros(1, 8), 8, None) is None
    with pytest.raises(AssertionError, match="would cross pages of 64"):
        plan(index_layer(), torch.int8, 64, None, torch.zeros(1, 8), 48, None)


def group(size: int) -> SimpleNamespace:
    return SimpleNamespace(size=lambda: size, rank=lambda: 0)


@pytest.mark.parametrize("size", [1, 8])
def test_a_group_of_one_gets_a_local_expert_buffer_and_larger_ones_the_real(
    patched: Path, size: int
) -> None:
    from h20_ops.local_buffers import LocalEPBuffer

    real = SimpleNamespace(num_bytes=1)
    names = {
        "PLATFORM": platform(),
        "envs": SimpleNamespace(
            DEEPINFER_BATCH_INVARIANT=False,
            DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL=0,
            DEEPINFER_USERBUFFER_COMM_SMS=4,
        ),
        "EPBuffer": lambda **_: real,
        "logger": SimpleNamespace(info=lambda *_: None),
        "_gib": str,
    }
    manager = SimpleNamespace(ep=None)
    allocate = function(patched, USERBUFFER, "_UserBufferManager.allocate_ep", **names)
    made = allocate(manager, group(size), 64, 512, 2, 16, True)
    assert (made is real) == (size > 1)
    assert isinstance(made, LocalEPBuffer) == (size == 1)
    if size == 1:
        assert allocate(manager, group(size), 64, 512, 2, 16, True) is made


def test_a_group_of_one_gathers_engram_rows_from_its_own_tables(patched: Path) -> None:
    names = {
        "PLATFORM": platform(),
        "envs": SimpleNamespace(DEEPINFER_ENGRAM_FORCE_GPU_STORAGE=True),
        "logger": SimpleNamespace(info=lambda *_: None),
        "_gib": str,
        "torch": torch,
    }
    manager = SimpleNamespace(engram=None)
    allocate = function(patched, USERBUFFER, "_UserBufferManager.allocate_engram", **names)
    buffer = allocate(manager, group(1), [16], 128, 8, 3, torch.float8_e4m3fn, 1)
    assert manager.engram is buffer
    values = torch.randn(16, 128).to(torch.float8_e4m3fn)
    packed = torch.full((16, 1), 0x7E7E7E7E, dtype=torch.int32)  # 2^-1 in every group
    buffer.write([values], sfs=[packed])
    (hook,) = buffer.fetch(
        torch.tensor([[[3, 0, 15], [7, -1, 7]]], dtype=torch.int32),
        use_tma_aligned_col_major_sf=True,
    )
    rows = hook()
    assert (rows.shape, rows.dtype) == ((2, 3 * 128), torch.bfloat16)
    assert torch.equal(rows[0, :128].double(), values[3].double() / 2)
    assert rows.isfinite().all()
    with pytest.raises(AssertionError, match="only be called once"):
        allocate(manager, group(1), [16], 128, 8, 3, torch.float8_e4m3fn, 1)


@pytest.mark.parametrize("kind", ["packed", "bf16", "fp32"])
def test_engram_rows_reach_the_projection_as_bf16(patched: Path, kind: str) -> None:
    values = torch.randn(5, 256).to(torch.float8_e4m3fn)
    exponents = torch.randint(118, 126, (5, 8), dtype=torch.uint8)
    storage = torch.zeros(2, 8, dtype=torch.int32)
    packed = storage.T[:5]
    packed.copy_(exponents.view(torch.int32))  # column-major, as the engine asks for it
    exact = values.double() * torch.exp2(exponents.double() - 127).repeat_interleave(32, 1)
    given = {
        "packed": (values, packed),
        "bf16": exact.bfloat16(),
        "fp32": (values, torch.ones(5, 2)),
    }[kind]
    projected: list[Any] = []

    def project(rows: Any) -> Any:
        projected.append(rows)
        return torch.zeros(5, 3 * 4)

    gate = SimpleNamespace(engram_gate_fwd=lambda *_, **__: ("gated",))
    forward = function(
        patched,
        f"{V4}/engram.py",
        "Engram.forward",
        PLATFORM=platform(),
        torch=torch,
        tile_kernels=SimpleNamespace(engram=gate),
    )
    layer = SimpleNamespace(
        fused_kv_projection=project, weight_fused=None, eps=0.0, clamp_value=0.0
    )
    if kind == "fp32":
        with pytest.raises(AssertionError, match=r"packed UE8M0, got torch\.float32"):
            forward(layer, torch.zeros(5, 2, 4), lambda: given)
        return
    assert forward(layer, torch.zeros(5, 2, 4), lambda: given) == "gated"
    (rows,) = projected
    assert rows.dtype == torch.bfloat16
    assert torch.equal(rows.double(), exact)


@pytest.mark.parametrize("is_sm90", [True, False])
def test_vision_attention_comes_from_where_the_gpu_has_it(
    patched: Path, monkeypatch: pytest.MonkeyPatch, is_sm90: bool
) -> None:
    text = (patched / "deepinfer/model_executor/models/vision_encoder/vit.py").read_text()
    start = text.index("# >>> dih20 P12-vision-attention")
    block = text[start : text.index("# <<< dih20 P12-vision-attention")]
    monkeypatch.setitem(
        sys.modules,
        "deep_cluster.hardware.device",
        SimpleNamespace(is_sm_major_9=lambda: is_sm90),
    )
    theirs = SimpleNamespace(_flash_attn_fwd="theirs")
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", theirs)
    names: dict[str, Any] = {}
    exec(block, names)
    if is_sm90:
        from h20_ops.vit_attention import vit_attention

        assert names["_flash_attn_fwd"] is vit_attention
    else:
        assert names["_flash_attn_fwd"] == "theirs"


def test_the_engines_own_call_of_vision_attention_is_understood(patched: Path) -> None:
    """The keywords stand in upstream's call; the operator must take every one of them."""
    from h20_ops.vit_attention import vit_attention

    text = (patched / "deepinfer/model_executor/models/vision_encoder/vit.py").read_text()
    call = text.split("out, *_ = _flash_attn_fwd(", 1)[1].split("\n        )", 1)[0]
    keywords = {line.split("=")[0].strip() for line in call.splitlines() if "=" in line}
    assert len(keywords) == 11
    assert keywords <= set(inspect.signature(vit_attention).parameters)
