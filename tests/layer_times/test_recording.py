"""What is kept of a call can be replayed after the engine has emptied or changed its tensors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
pytestmark = pytest.mark.torch

from dih20.layer_times.recording import Recorder, tensors_of  # noqa: E402


def recorder() -> Recorder:
    made = Recorder()
    made.start()
    made.layer = 3
    return made


def test_a_tensor_that_is_emptied_after_use_is_still_whole() -> None:
    kept = recorder()
    double = kept.operator("double", lambda pair: pair[0] * 2)
    x = torch.arange(4.0)
    double((x, None))
    x.data = torch.Tensor()
    calls, _ = kept.stop()
    assert x.numel() == 0
    assert calls[0].function(*calls[0].arguments).tolist() == [0.0, 2.0, 4.0, 6.0]


def test_an_argument_that_the_operator_changes_is_put_back_for_each_replay() -> None:
    kept = recorder()
    count = kept.operator("count", lambda x: x.add_(1), kept=(0,))
    count(torch.zeros(2))
    (call,), _ = kept.stop()
    for _ in range(3):
        call.function(*call.arguments)
    assert call.arguments[0].tolist() == [1.0, 1.0]


def test_an_operator_inside_another_is_part_of_it() -> None:
    kept = recorder()
    inner = kept.operator("inner", torch.neg)
    outer = kept.operator("outer", lambda x: inner(x) + 1)
    with kept.inside("attention"), kept.inside("q_proj"):
        outer(torch.ones(1))
    calls, _ = kept.stop()
    assert [call.component for call in calls] == ["attention.q_proj: outer"]
    assert calls[0].layer == 3


@pytest.mark.parametrize("layer", [-1, 0])
def test_nothing_is_kept_outside_layers_or_when_stopped(layer: int) -> None:
    kept = recorder()
    kept.layer = layer
    kept.active = layer < 0
    kept.operator("plain", torch.neg)(torch.ones(1))
    assert kept.stop()[0] == []


def test_a_method_is_replayed_on_its_own_object() -> None:
    kept = recorder()
    method = kept.method("scaled", lambda itself, x, *, by: itself.factor * x * by)
    method(SimpleNamespace(factor=3), torch.ones(1), by=2)
    (call,), _ = kept.stop()
    assert call.function(*call.arguments, **call.keywords).item() == 6.0


def test_nested_tensors_are_all_seen() -> None:
    a, b, c = (torch.ones(1) for _ in range(3))
    found = list(tensors_of({"x": (a, [b, None]), "y": c, "z": 4}))
    assert [id(each) for each in found] == [id(a), id(b), id(c)]
