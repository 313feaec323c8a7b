"""Run a recorded call again, alone, in a CUDA graph, on copies of its tensors that do not fit in L2 together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dih20.layer_times.recording import Call, tensors_of
from h20_ops.testing.timing import Timing, rotation_count, time_calls

_MOST_BYTES = 2 << 30  # of one copy; beyond it, one call's tensors push each other out of L2
_REPLAYS = 8


def time_call(call: Call) -> Timing:
    """Time one call; what it changes in place is put back inside its time."""
    held = sum(
        each.untyped_storage().nbytes()
        for each in tensors_of((call.arguments, call.keywords))
        if each.is_cuda
    )
    count = 1 if held > _MOST_BYTES else rotation_count(held, limit=6)
    return time_calls([_again(call, fresh=turn > 0) for turn in range(count)], replays=_REPLAYS)


def time_layer(again: Callable[[], Any]) -> Timing:
    """Time a whole layer; its weights are far more than L2 holds."""
    return time_calls([again], replays=_REPLAYS)


def launch_us() -> float:
    """Time of the smallest kernel in a graph: no component is faster than this for each kernel it has."""
    small = torch.zeros(1, device="cuda")
    return time_calls([small.zero_ for _ in range(32)], replays=_REPLAYS).median_us


def _again(call: Call, *, fresh: bool) -> Callable[[], Any]:
    arguments, keywords = call.arguments, call.keywords
    if fresh:
        arguments, keywords = copied(arguments), copied(keywords)
    return lambda: call.function(*arguments, **keywords)


def copied(value: Any) -> Any:
    """Copy tensors with their strides; paged caches, far larger than L2, are shared."""
    if isinstance(value, torch.Tensor):
        if value.dtype == torch.uint8 and value.dim() == 4:
            return value
        if not value.numel():
            return value
        whole = torch.empty_strided(
            value.size(), value.stride(), dtype=value.dtype, device=value.device
        )
        if value.element_size() == 1:
            whole.view(torch.uint8).copy_(value.view(torch.uint8))
        else:
            whole.copy_(value)
        return whole
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(copied(each) for each in value)
    if isinstance(value, list):
        return [copied(each) for each in value]
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return value
