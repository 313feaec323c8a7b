"""Time GPU calls by replaying a CUDA graph over buffers that do not fit in L2 together."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

_COPY_BYTES = 2 << 30


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Time of one call in microseconds, over `replays` replays of a graph of `calls` calls."""

    median_us: float
    min_us: float
    p90_us: float
    calls: int
    replays: int


def rotation_count(bytes_read: int, limit: int = 32) -> int:
    """Return how many sets of buffers make a call find none of its inputs in L2.

    Two L2 sizes pass between two uses of a set. At least 2, at most `limit`.
    """
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    l2_bytes = int(properties.L2_cache_size)
    return max(2, min(limit, -(-2 * l2_bytes // max(1, bytes_read)) + 1))


def time_calls(calls: Sequence[Callable[[], object]], *, replays: int = 30) -> Timing:
    """Capture all calls into one graph, replay it, and return the time of one call.

    Args:
        calls: the same operation on rotated buffers; each must be capture-safe. They run once
            eagerly first, so compilation and autotuning are not in the numbers.
        replays: timed replays; three more come before them.
    """
    return time_in_turns(calls, replays=replays)[0]


def time_in_turns(*several: Sequence[Callable[[], object]], replays: int = 30) -> list[Timing]:
    """Time several operations as time_calls does, replaying their graphs in turns.

    A card's clock drifts by more than two kernels may differ; in turns it drifts for both alike.
    """
    captured = [_capture(calls) for calls in several]
    for graph, _ in captured * 3:
        graph.replay()
    times: list[list[float]] = [[] for _ in several]
    events = [
        (which, torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(replays)
        for which in range(len(several))
    ]
    for which, start, end in events:
        start.record()
        captured[which][0].replay()
        end.record()
    torch.cuda.synchronize()
    for which, start, end in events:
        times[which].append(start.elapsed_time(end) * 1e3 / len(several[which]))
    return [_timing(sorted(found), len(calls)) for found, calls in zip(times, several, strict=True)]


def _capture(
    calls: Sequence[Callable[[], object]],
) -> tuple[torch.cuda.CUDAGraph, list[object]]:
    """Run all calls once, then capture them into one graph; what they return must be kept."""
    assert calls, "at least one call is needed"
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    return graph, kept


def _timing(times: Sequence[float], calls: int) -> Timing:
    """Sum up sorted times of one call in microseconds."""
    return Timing(
        median_us=statistics.median(times),
        min_us=times[0],
        p90_us=times[min(len(times) - 1, int(len(times) * 0.9))],
        calls=calls,
        replays=len(times),
    )


def copy_bandwidth_gbps() -> float:
    """Return bytes read plus written per second of a streaming kernel, in GB/s, in this run.

    Not a plain copy: in a graph that becomes a memcpy node for the copy engines, which reach about
    two thirds of what kernels do (2.77 of 4.2 TB/s on an H200).
    """
    source = torch.empty(_COPY_BYTES // 4, dtype=torch.int32, device="cuda").random_()
    target = torch.empty_like(source)
    timing = time_calls([lambda: torch.bitwise_not(source, out=target)], replays=10)
    return 2 * _COPY_BYTES / timing.median_us / 1e3
