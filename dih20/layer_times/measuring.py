"""Measure both passes and give plain rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dih20.layer_times import gemms, hooking, shape
from dih20.layer_times.engine import LayerEngine
from dih20.layer_times.reasons import FAR, reason
from dih20.layer_times.recording import Call, Recorder
from dih20.layer_times.replaying import launch_us, time_call, time_layer
from dih20.layer_times.works import Batch, work_of
from h20_ops.testing.roofline import H200
from h20_ops.testing.timing import copy_bandwidth_gbps

Row = dict[str, Any]


def measure(
    folder: Path,
    *,
    sequences: int,
    context: int,
    tokens: int,
    seconds: float,
    say: Callable[[str], None],
    keep: Callable[[Row], None],
) -> None:
    """Start the engine, run both passes, replay what they called.

    Args:
        seconds: what is left when they are over is not timed, and says so.
        keep: gets the whole content after each layer, so that a run that is cut short leaves its part.
    """
    clock = _Clock(seconds, say)
    compiling = gemms.start((sequences, tokens))
    config = shape.config_json()
    engine = LayerEngine(
        shape.write_model(folder, config), sequences=sequences, context=context, longest=tokens
    )
    clock.say("engine started")
    clock.say(f"kernels compiled: {[process.wait() for process in compiling]}")
    recorder = Recorder()
    hooking.install(recorder)
    hooking.name_modules(engine.model)
    text = config["text_config"]
    passes: list[tuple[str, Callable[[], Any], Batch]] = [
        (
            f"decode, {sequences} sequences of {context} tokens",
            lambda: engine.decode(sequences, context),
            _batch(text, sequences, float(context), context),
        ),
        (
            f"prefill, {tokens} tokens",
            lambda: engine.prefill(tokens),
            _batch(text, tokens, (tokens + 1) / 2, tokens),
        ),
    ]
    with torch.inference_mode():
        engine.fill_caches()
        record: Row = {
            "copy_gbps": round(copy_bandwidth_gbps(), 1),
            "launch_us": round(launch_us(), 2),
            "passes": {},
        }
        for name, run, batch in passes:
            run()
            recorder.start()
            run()
            calls, layers = recorder.stop()
            torch.cuda.synchronize()
            clock.say(f"{name}: {len(calls)} calls")
            done: list[Row] = []
            record["passes"][name] = {"layers": done}
            for index in sorted(layers):
                row = {"layer": index, "kind": shape.KINDS[index]}
                row["us"] = clock.timed(_layer_timer(layers[index]))
                own = [call for call in calls if call.layer == index]
                done.append({**row, "components": [_row(c, batch, record, clock) for c in own]})
                record["seconds"] = clock.passed()
                keep(record)
            clock.say(f"{name}: timed")
            del calls, layers
    engine.close()


class _Clock:
    """What has passed, and how a component is timed within what is left."""

    def __init__(self, seconds: float, say: Callable[[str], None]) -> None:
        self._began, self._seconds, self._say = time.monotonic(), seconds, say

    def passed(self) -> int:
        return round(time.monotonic() - self._began)

    def say(self, line: str) -> None:
        self._say(f"{self.passed():3d} s: {line}")

    def timed(self, run: Callable[[], float]) -> float | str:
        """Give microseconds, or why there are none: one component must not cost all others."""
        if self.passed() > self._seconds:
            return "not timed: no time left"
        try:
            return round(run(), 2)
        except Exception as fault:  # noqa: BLE001  a component that cannot be captured is named
            torch.cuda.synchronize()
            return f"{type(fault).__name__}: {fault}"[:200]


def _row(call: Call, batch: Batch, card: Row, clock: _Clock) -> Row:
    """One component: its time, the larger of what products and memory need, and how far it is."""
    work = work_of(call, batch)
    products = work.flops / (H200.bf16_tflops * work.mma_speed) / 1e6
    memory = work.bytes_moved / card["copy_gbps"] / 1e3
    bound = max(products, memory)
    us = clock.timed(lambda: time_call(call).median_us)
    row: Row = {
        "component": call.component,
        "us": us,
        "roofline_us": round(bound, 2),
        "roofline_of": "products" if products > memory else "memory",
    }
    if not isinstance(us, float):
        return row
    row["times_bound"] = round(us / max(bound, card["launch_us"]), 2)
    if row["times_bound"] > FAR:
        row["why"] = reason(call.operator)
    return row


def _layer_timer(again: Callable[[], Any]) -> Callable[[], float]:
    return lambda: time_layer(again).median_us


def _batch(text: Row, rows: int, keys: float, longest: int) -> Batch:
    return Batch(
        rows=rows,
        keys=keys,
        longest=longest,
        experts_per_token=text["num_experts_per_tok"],
        index_topk=text["index_topk"],
        ratios=tuple(text["compress_ratios"]),
    )
