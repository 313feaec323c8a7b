"""Patched loading on a CPU: what a checkpoint's blocks become, value by value."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patches.edits.patched_code import dequantised, function, platform, with_scale

torch = pytest.importorskip("torch", exc_type=ImportError)
pytestmark = pytest.mark.torch

CONTAINERS = "deepinfer/model_executor/models/v4_modules/containers.py"
PARAMETERS = "deepinfer/hugging_face/parameters.py"
WEIGHTS = "deepinfer/hugging_face/weights.py"


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deepinfer package whose PLATFORM is a Hopper GPU, for branches that import it themselves."""
    monkeypatch.setitem(sys.modules, "deepinfer", SimpleNamespace(PLATFORM=platform()))


def draw(*shape: int, seed: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def exponents(*shape: int, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(118, 126, shape, generator=generator, dtype=torch.uint8)


def test_scale_shapes_follow_the_checkpoints_blocks(patched: Path) -> None:
    prepare = function(
        patched,
        CONTAINERS,
        "prepare_meta_fp8",
        PLATFORM=platform(),
        torch=torch,
        nn=torch.nn,
        get_fp8_casting_granularity=lambda: 128,
    )
    with torch.device("meta"):
        dense = torch.nn.Linear(256, 384, bias=False)
        table = torch.nn.Module()
        table.embedding = torch.nn.Parameter(torch.empty(512, 256))
    dense.use_fp8_gemm = True
    table.use_fp8_embedding = True
    prepare(torch.nn.ModuleDict({"dense": dense, "table": table}))
    assert tuple(dense.weight.sf.shape) == (12, 8)
    assert tuple(table.embedding.sf.shape) == (512, 8)


def test_dense_weights_keep_their_values_over_larger_blocks(patched: Path, hopper: None) -> None:
    values = draw(256, 384, seed=1).to(torch.float8_e4m3fn)
    scales = torch.exp2(torch.randint(-3, 1, (8, 12), generator=torch.Generator().manual_seed(2)))
    before = dequantised(values, scales.float(), (32, 32))
    parameter = with_scale(values.clone(), scales.float())
    function(patched, PARAMETERS, "set_ue8m0_sf", torch=torch)([parameter])
    assert tuple(parameter.sf.shape) == (2, 3)
    assert parameter.sf.dtype == torch.float32
    after = dequantised(parameter.data, parameter.sf, (128, 128))
    largest = parameter.sf.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    assert ((after - before).abs() <= largest * 2.0**-10).all()
    assert ((after != before).float().mean()) < 0.05


def test_a_weight_of_ragged_blocks_is_refused(patched: Path, hopper: None) -> None:
    parameter = with_scale(torch.zeros(192, 128).to(torch.float8_e4m3fn), torch.ones(6, 4))
    with pytest.raises(AssertionError, match="128x128"):
        function(patched, PARAMETERS, "set_ue8m0_sf", torch=torch)([parameter])


def materialized(patched: Path, experts: int, rows: int, columns: int) -> Any:
    make = function(
        patched,
        CONTAINERS,
        "materialize_hf_parameter",
        PLATFORM=platform(),
        torch=torch,
        nn=torch.nn,
        get_fp8_casting_granularity=lambda: 128,
    )
    flat = torch.empty(experts * columns, rows, device="meta").to(torch.float8_e4m3fn)
    declared = with_scale(flat, torch.empty(experts * columns // 32, rows // 32, device="meta"))
    declared.n_experts = experts
    declared.layer_id = 7
    return make(declared, device="cpu", packed_fp4=True)


def test_there_is_room_for_fp8_experts_with_their_metadata(patched: Path) -> None:
    made = materialized(patched, 3, 256, 384)
    assert (tuple(made.shape), made.dtype) == ((3, 256, 384), torch.float8_e4m3fn)
    assert (tuple(made.sf.shape), made.sf.dtype) == ((3, 2, 3), torch.float32)
    assert (made.layer_id, made.n_experts) == (7, 3)
    assert not hasattr(made, "mxfp4")


class Reader:
    """The engine's reader over tensors in memory."""

    tensors: dict[str, Any]

    def __init__(self, tensors: dict[str, Any]) -> None:
        self.tensors = tensors

    def read_concat(self, names: Any, device: Any) -> Any:
        parts = [self.tensors[name].view(torch.uint8) for name in names]
        joined = torch.cat(parts)
        is_scale = joined.shape[1] == 384 // 32
        return joined.view(torch.float8_e8m0fnu if is_scale else torch.int8)


class Log:
    """The engine's logger; keeps what it is told, by level."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def info(self, text: str) -> None:
        self.told.append(("info", text))

    def warning(self, text: str) -> None:
        self.told.append(("warning", text))


def expert_loader(
    patched: Path,
    log: Log,
    tensors: dict[str, Any],
    local: dict[str, tuple[int, ...]],
) -> Any:
    """Give the patched _load_expert_params over tensors in memory, for experts local to this rank."""
    return function(
        patched,
        WEIGHTS,
        "_load_expert_params",
        torch=torch,
        logger=log,
        _local_expert_ids=lambda model, params: local,
        _TensorReader=lambda hf_dir, index: nullcontext(Reader(tensors)),
        scale_name=lambda name: f"{name}.scale",
    )


def test_inexact_experts_are_told_once_with_the_worst(
    patched: Path, hopper: None, caplog: pytest.LogCaptureFixture
) -> None:
    made, log, tensors = materialized(patched, 4, 128, 384), Log(), {}
    for expert, lowest in enumerate((125, 111, 110, 90)):  # below 125: 0, 14, 15 and 35 places
        tensors[f"e{expert}"] = torch.full((128, 192), 0x11, dtype=torch.uint8)  # 0.5 each
        scales = torch.full((128, 12), 125, dtype=torch.uint8)
        scales[0, 0] = lowest
        tensors[f"e{expert}.scale"] = scales
    tensors["e3.scale"][1, 0] = 90
    load = expert_loader(patched, log, tensors, {"l": (0, 1, 2, 3)})
    names = tuple((f"e{expert}",) for expert in range(4))
    coverage = SimpleNamespace(expert_tensors={"l": names}, weight_map={})
    assert load(None, {"l": made}, coverage, Path())["experts"] == 4
    ((level, text),) = log.told
    assert level == "warning"
    assert text.startswith("inexact experts: 2 of 4, worst l[3]: lossy: 64 of 49152 values")
    assert "span at most 2^14" in text
    assert not caplog.records, "and not once for each"


def test_fp4_experts_are_loaded_as_the_same_values_in_fp8(patched: Path, hopper: None) -> None:
    from h20_ops.formats import decode_e2m1, decode_ue8m0, unpack_nibbles

    made, log = materialized(patched, 2, 256, 384), Log()
    tensors = {}
    for expert in range(4):
        for part in ("w1", "w3"):
            codes = torch.randint(0, 256, (128, 192), dtype=torch.uint8)
            tensors[f"e{expert}.{part}"] = codes
            tensors[f"e{expert}.{part}.scale"] = exponents(128, 12, seed=expert)
    load = expert_loader(patched, log, tensors, {"layer.linear1": (3, 1)})
    names = tuple((f"e{expert}.w1", f"e{expert}.w3") for expert in range(4))
    coverage = SimpleNamespace(
        expert_tensors={"layer.linear1": names, "gone.linear1": names}, weight_map={}
    )
    stats = load(None, {"layer.linear1": made}, coverage, Path())
    assert stats == {"expert_params": 1, "experts": 2, "expert_skipped": 1}
    assert log.told == [("info", "inexact experts: 0 of 2")]
    for local, expert in enumerate((3, 1)):
        packed = torch.cat([tensors[name] for name in names[expert]])
        scale = torch.cat([tensors[f"{name}.scale"] for name in names[expert]])
        exact = decode_e2m1(unpack_nibbles(packed)).double()
        exact = exact * decode_ue8m0(scale).double().repeat_interleave(32, 1)
        assert torch.equal(dequantised(made.data[local], made.sf[local], (128, 128)), exact)


def test_an_expert_scale_of_another_shape_is_refused(patched: Path, hopper: None) -> None:
    made = materialized(patched, 1, 256, 384)
    tensors = {
        "w": torch.zeros(256, 192, dtype=torch.uint8),
        "w.scale": torch.zeros(128, 12, dtype=torch.uint8),
    }
    load = function(
        patched,
        WEIGHTS,
        "_load_expert_params",
        torch=torch,
        _local_expert_ids=lambda model, params: {"l": (0,)},
        _TensorReader=lambda hf_dir, index: nullcontext(Reader(tensors)),
        scale_name=lambda name: f"{name}.scale",
    )
    coverage = SimpleNamespace(expert_tensors={"l": (("w",),)}, weight_map={})
    with pytest.raises(AssertionError, match=r"l\[0\]: scale \(128, 12\)"):
        load(None, {"l": made}, coverage, Path())


_IMAGE_START = "module.module.0.params.image_start"


@pytest.mark.parametrize(
    "missing", ["vision_pipeline.norm.weight", _IMAGE_START, "module.0.norm.weight"]
)
def test_only_vision_may_be_missing_and_it_becomes_zero(
    patched: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tower, start = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))
    model = SimpleNamespace(
        named_parameters=lambda: [
            ("vision_pipeline.norm.weight", tower),
            (_IMAGE_START, start),
            ("m", torch.ones(1)),
        ]
    )
    loaded: list[str] = []
    package = SimpleNamespace(
        load_covered_params=lambda *_, **__: loaded.append("yes"),
        model_params=lambda gpt: {missing: None, "m": None},
        validate_hf_shapes=lambda *_, **__: None,
    )
    monkeypatch.setitem(sys.modules, "deepinfer", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "deepinfer.hugging_face", package)
    load = function(
        patched,
        "deepinfer/model_executor/model_loader.py",
        "load_hf_checkpoint",
        checkpoint_load_watchdog=nullcontext,
        logger=SimpleNamespace(info=lambda *_: None),
    )
    coverage = SimpleNamespace(model_names=lambda: {"m"})
    if missing != "module.0.norm.weight":
        load(model, hf_dir=Path(), hf_coverage=coverage)
        assert loaded == ["yes"]
    else:
        with pytest.raises(RuntimeError, match=r"module\.0\.norm\.weight"):
            load(model, hf_dir=Path(), hf_coverage=coverage)
    assert tower.tolist() == [0.0, 0.0, 0.0]
    assert start.tolist() == [0.0, 0.0]
