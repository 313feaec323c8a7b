"""Watch what the engine's attention is given while one fresh sequence runs, and judge it exactly."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from dih20.engine_check.attention_reach import decode_faults, prefill_faults
from dih20.engine_check.reference import Followed
from dih20.engine_check.swapping import replaced
from v41.config import ModelConfig

ATTENTION = "model.layers.{layer}.self_attn"
PREFILL, DECODE = "_prefill_attention", "_decode_attention"
_KEPT = 20  # faults in the record
# What a name, a shape or a length that is not there raises.
_DRIFT = (AttributeError, KeyError, IndexError, TypeError, RuntimeError, ValueError)


class ReachWatch:
    """Judge every layer of every forward pass while the context is open.

    skip: says whether the forward pass that runs is none of a request.
    faults: "layer 3, prefill" -> what was found. calls: layer -> rows in prefill, steps of decode.
    """

    def __init__(self, model: Any, config: ModelConfig, skip: Callable[[], bool]) -> None:
        self.model, self.config, self.skip = model, config, skip
        self.faults: dict[str, str] = {}
        self.rows = [0] * config.num_hidden_layers
        self.steps = [0] * config.num_hidden_layers
        self._open = ExitStack()

    def __enter__(self) -> ReachWatch:
        with ExitStack() as stack:
            for layer in range(self.config.num_hidden_layers):
                for call, judge in ((PREFILL, self._prefill), (DECODE, self._decode)):
                    self._watch(stack, layer, call, judge)
            self._open = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    def left_out(self, prompt: int, steps: int) -> list[str]:
        """Say which layers were not seen with a prompt of this length and so many decode steps."""
        return [
            f"layer {layer}: attention over {rows} rows and {seen} steps was seen, "
            f"expected {prompt} and {steps}"
            for layer, (rows, seen) in enumerate(zip(self.rows, self.steps, strict=True))
            if (rows, seen) != (prompt, steps)
        ]

    def _watch(self, stack: ExitStack, layer: int, call: str, judge: Callable[..., None]) -> None:
        try:
            module = self.model.get_submodule(ATTENTION.format(layer=layer))
            original = getattr(module, call)
            signature = inspect.signature(original)
        except (AttributeError, TypeError) as drift:
            self.faults[f"layer {layer}, {call}"] = f"{type(drift).__name__}: {drift}"
            return

        def watched(*args: Any, **kwargs: Any) -> Any:
            if not self.skip():
                self._judge(layer, call, judge, signature.bind(*args, **kwargs).arguments)
            return original(*args, **kwargs)

        stack.enter_context(replaced(module, call, watched))

    def _judge(
        self, layer: int, call: str, judge: Callable[..., None], given: dict[str, Any]
    ) -> None:
        try:
            judge(layer, given)
        except _DRIFT as drift:
            self.faults.setdefault(f"layer {layer}, {call}", f"{type(drift).__name__}: {drift}")

    def _prefill(self, layer: int, given: dict[str, Any]) -> None:
        self.rows[layer] += given["q_b"].shape[0]
        found = prefill_faults(given, self.config.layer(layer), self.config)
        self._note(f"layer {layer}, prefill", found)

    def _decode(self, layer: int, given: dict[str, Any]) -> None:
        position = self.rows[layer] + self.steps[layer]
        self.steps[layer] += 1
        found = decode_faults(given, position, self.config.layer(layer), self.config)
        self._note(f"layer {layer}, decode at {position}", found)

    def _note(self, label: str, found: list[str]) -> None:
        if found:
            self.faults.setdefault(label, "; ".join(found))


class Reached:
    """Add up what the watches of several cases saw."""

    def __init__(self) -> None:
        self.rows = self.steps = 0
        self.faults: list[str] = []

    def take(self, case: Followed, watch: ReachWatch) -> None:
        self.rows += sum(watch.rows)
        self.steps += sum(watch.steps)
        found = [f"{label}: {fault}" for label, fault in watch.faults.items()]
        found += watch.left_out(len(case.prompt), len(case.golden) - 1)
        self.faults += [f"{case.name}: {fault}" for fault in found]

    def judged(self) -> tuple[dict[str, Any], list[str]]:
        """Give the numbers, and one sentence when anything was found."""
        numbers = {"rows": self.rows, "steps": self.steps, "faults": self.faults[:_KEPT]}
        if not self.faults:
            return numbers, []
        count = f", the first of {len(self.faults)} faults" if len(self.faults) > 1 else ""
        return numbers, [f"what attention may read is not as it should be{count}: {self.faults[0]}"]
