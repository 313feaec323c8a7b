"""Patched platform on a CPU: peaks, scale types, cores, flags."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from tests.patches.edits.patched_code import function

torch = pytest.importorskip("torch", exc_type=ImportError)
pytestmark = pytest.mark.torch

V4 = "deepinfer/model_executor/models/v4_modules"
DEVICE = "deep_cluster/hardware/device.py"
UTILS = "deepinfer/utils.py"
USERBUFFER = "deepinfer/model_executor/parallel_utils/userbuffer.py"


@pytest.mark.parametrize(
    ("card", "capability", "tflops"),
    [
        ("NVIDIA H20", (9, 0), 148),
        ("NVIDIA H20-3e", (9, 0), 148),
        ("NVIDIA H200", (9, 0), 989),
        ("NVIDIA H100 80GB HBM3", (9, 0), 989),
        ("NVIDIA B200", (10, 0), 2250),
    ],
)
def test_the_peak_follows_the_card(
    patched: Path,
    monkeypatch: pytest.MonkeyPatch,
    card: str,
    capability: tuple[int, int],
    tflops: int,
) -> None:
    names: dict[str, Any] = {
        "functools": functools,
        "accelerator_kind": lambda: "nvidia",
        "nvidia": SimpleNamespace(compute_capability=lambda: capability),
        "platform": SimpleNamespace(machine=lambda: "x86_64"),
    }
    names["is_sm_major_9"] = function(patched, DEVICE, "is_sm_major_9", **names)
    names["is_sm_major_10"] = function(patched, DEVICE, "is_sm_major_10", **names)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: card)
    assert function(patched, DEVICE, "get_bf16_tflops_limit", **names)() == tflops


def test_a_gpu_of_unknown_capability_is_refused(patched: Path) -> None:
    unknown = SimpleNamespace(compute_capability=lambda: None)
    names = {"functools": functools, "accelerator_kind": lambda: "nvidia", "nvidia": unknown}
    with pytest.raises(RuntimeError, match="utility"):
        function(patched, DEVICE, "is_sm_major_9", **names)()


@pytest.mark.parametrize("is_sm90", [True, False])
def test_packed_containers_keep_int32_and_gemm_scales_get_their_own_type(
    patched: Path, monkeypatch: pytest.MonkeyPatch, is_sm90: bool
) -> None:
    device = SimpleNamespace(is_sm_major_9=lambda: is_sm90)
    monkeypatch.setitem(sys.modules, "deep_cluster.hardware.device", device)
    made = SimpleNamespace()
    function(patched, "deepinfer/platform.py", "PlatformGPU.__init__")(made)
    assert made.fp8_sf_type == torch.int32
    assert made.is_sm90 is is_sm90
    assert made.gemm_sf_type == (torch.float32 if is_sm90 else torch.int32)
    text = (patched / "deepinfer/platform.py").read_text()
    assert "    is_sm90: bool = False\n" in text[text.index("class Platform:") :]


@pytest.mark.parametrize(
    ("physical", "allowed", "rank", "bound"),
    [
        (16, range(16), 1, list(range(2, 4))),  # as upstream would
        (None, range(8), 1, [1]),
        (16, [0, 1, 4, 5, 6, 7, 8, 9], 1, [1]),
        (None, range(4), 1, None),
    ],
)
def test_cores_are_bound_within_what_is_allowed(
    patched: Path,
    monkeypatch: pytest.MonkeyPatch,
    physical: int | None,
    allowed: Any,
    rank: int,
    bound: list[int] | None,
) -> None:
    chosen: list[Any] = []
    package = SimpleNamespace(topology=SimpleNamespace(set_cpu_affinity=chosen.append))
    monkeypatch.setitem(sys.modules, "deep_cluster", package)
    monkeypatch.setitem(sys.modules, "deep_cluster.topology", package.topology)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed))
    quiet = SimpleNamespace(info=lambda *_: None, warning=lambda *_: None)
    names = {
        "psutil": SimpleNamespace(cpu_count=lambda logical: physical),
        "get_actual_num_gpus": lambda: 8,
        "logger": quiet,
        "envs": SimpleNamespace(DEEPINFER_SO_BUILDER_CPUS=1),
    }
    function(patched, UTILS, "bind_cpu", **names)(rank)
    assert chosen == ([] if bound is None else [bound])
    idle = function(patched, UTILS, "get_idle_cpus", **names)(rank)
    assert idle == ([2] if bound == [2, 3] else [])


def test_a_gpu_without_a_numa_node_is_not_bound(
    patched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def library() -> NoReturn:
        raise AssertionError("libnuma was asked")

    bind = function(
        patched, "deep_cluster/topology/bind.py", "bind_numa", sys=sys, _libnuma=library
    )
    assert bind(-1) == -1
    assert "no NUMA node (-1)" in capsys.readouterr().err
    with pytest.raises(AssertionError, match="libnuma was asked"):
        bind(0)


def test_flags_of_blackwell_kernels_are_off_on_hopper_alone(patched: Path) -> None:
    for file, flag in (
        (f"{V4}/mlp.py", "self.use_mega_moe = ("),
        (f"{V4}/mlp.py", "self.use_mega_gate = "),
        (f"{V4}/hc.py", "self.use_mega_mhc = ("),
        (f"{V4}/attn.py", "self.use_fused_norm_rope_attn_rope_cast = ("),
    ):
        text = (patched / file).read_text()
        value = text.split(flag, 1)[1].split("\n        #|")[0].strip()
        assert value.count("not PLATFORM.is_sm90 and (") == 1, (flag, value[:60])
        assert "PLATFORM.is_gpu" in value
