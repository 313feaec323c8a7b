"""A tensor whose FP8 codes fell on the other side of a tie is explained; faults of its size are not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from dih20.parity.capture import dump_reference
from dih20.parity.compare import compare_dumps
from dih20.parity.compare.dense import dense_distance
from dih20.parity.compare.limits import table
from dih20.parity.compare.moved_codes import RecordingNumerics, moved_codes
from dih20.parity.model import Measure
from tests.parity.runs import CONFIG, IDS, ROWS, WEIGHTS, Change, Runs, at, facts, tokens
from v41.attention import grouped_output
from v41.model import Reference
from v41.moe import swiglu_expert
from v41.numerics import Numerics
from v41.tap import Tap

pytestmark = pytest.mark.torch

LIMIT, SEEDS = 10.0, 40  # of SwiGLU; rows that are tried
D, INTER = 512, 128


class Expert:
    """One row of a shared expert, by the reference and by an engine whose gate and up are off."""

    def __init__(self, seed: int) -> None:
        self.noise = torch.Generator().manual_seed(seed)
        self.w1, self.w3 = (self._random(INTER, D) * D**-0.5 for _ in range(2))
        self.w2 = self._random(D, INTER) * INTER**-0.5
        self.x = self._random(1, D)
        self.numerics = RecordingNumerics.of("sm90")
        self.sound = self.run()

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.noise)

    def run(self) -> torch.Tensor:
        weights = self.w1, self.w3, self.w2
        return swiglu_expert(self.x, *weights, LIMIT, self.numerics)

    def engine(self, share: float) -> torch.Tensor:
        """Let `share` of gate's and up's values be the next bf16 number; x is fp32 in between."""
        gate, up = (call.result for call in list(self.numerics.calls)[:2])
        gate, up = (self._stepped(each, share) for each in (gate, up))
        hidden = torch.nn.functional.silu(gate.clamp_max(LIMIT)) * up.clamp(-LIMIT, LIMIT)
        return RecordingNumerics.of("sm90").linear(hidden, self.w2)

    def _stepped(self, x: torch.Tensor, share: float) -> torch.Tensor:
        sign = torch.randn(x.shape, generator=self.noise).sign()
        moves = torch.rand(x.shape, generator=self.noise) < share
        return torch.where(moves, (x * (1 + sign * 2.0**-8)).bfloat16().float(), x)

    def weighed(self, stored: torch.Tensor) -> Measure:
        self.run()  # the calls are those of the site
        apart = dense_distance([(self.sound.flatten(), stored.flatten())], (1, D)).normalised
        measure = Measure(value=apart, limit=table()["dense"])
        return moved_codes(measure, "layers.1.ffn.shared", stored, self.numerics, LIMIT)


def test_codes_that_one_bf16_step_moves_are_explained() -> None:
    beyond = 0
    for seed in range(SEEDS):
        expert = Expert(seed)
        measure = expert.weighed(expert.engine(share=0.05))
        beyond += not measure.value <= measure.limit
        assert not measure.exceeds, (seed, measure)
        assert float(measure.details["error_without_them"]) < 2e-5
    assert beyond > SEEDS // 8  # the test has rows that only the explanation saves


@pytest.mark.parametrize("fault", ["noise", "a wrong row", "scaled", "one value"])
def test_faults_as_small_as_moved_codes_are_not_explained(fault: str) -> None:
    for seed in range(SEEDS):
        expert = Expert(seed)
        stored = expert.sound.clone()
        if fault == "noise":
            noise = torch.randn(stored.shape, generator=expert.noise)
            stored += noise * stored.norm() / noise.norm() * 0.02
        elif fault == "a wrong row":
            stored[:, :2] = stored[:, 2:4]
        elif fault == "scaled":
            stored *= 1.02
        else:
            stored[0, int(stored.abs().argmax())] *= 0.8
        measure = expert.weighed(stored)
        assert measure.exceeds, (seed, measure)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_values_that_no_code_can_have_are_not_explained(value: float) -> None:
    expert = Expert(0)
    stored = expert.sound.clone()
    stored[0, 5] = value
    assert expert.weighed(stored).exceeds


def test_codes_that_move_two_steps_or_far_from_a_tie_are_not_explained() -> None:
    expert = Expert(0)
    hidden = expert.numerics.calls[-1].x.clone()
    code = expert.numerics.activation(hidden)
    largest = int(code.abs().argmax())
    hidden[0, largest] *= 1.3
    stored = RecordingNumerics.of("sm90").linear(hidden, expert.w2)
    assert expert.weighed(stored).exceeds


def test_of_attentions_output_the_input_of_its_last_linear_counts() -> None:
    noise = torch.Generator().manual_seed(3)
    groups, rank = 2, 64
    context = torch.randn(1, 1, 4, 512, generator=noise)
    wo_a = torch.randn(groups * rank, 2 * 512, generator=noise) * 1024**-0.5
    wo_b = torch.randn(D, groups * rank, generator=noise) * (groups * rank) ** -0.5
    numerics = RecordingNumerics.of("sm90")
    computed = grouped_output(context, wo_a, wo_b, groups, numerics)
    low = numerics.calls[-1].x
    moved = RecordingNumerics.of("sm90").linear(low * (1 + 2.0**-8), wo_b)
    apart = dense_distance([(computed.flatten(), moved.flatten())], (D,)).normalised
    measure = Measure(value=apart, limit=2e-5)
    assert measure.exceeds
    explained = moved_codes(measure, "layers.0.attn.output", moved, numerics, LIMIT)
    assert not explained.exceeds and int(explained.details["codes_moved"]) > 0, explained
    assert moved_codes(measure, "layers.0.attn.output", computed * 1.01, numerics, LIMIT).exceeds


class Nudged(Reference):
    """The shared experts' gate and up come out half a bf16 step larger, in decode."""

    def _expert(
        self, name: str, rows: torch.Tensor, weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        if "shared" not in name or len(rows) > 1:
            return super()._expert(name, rows, weight)
        w1, w3, w2 = (self.weights[f"{name}.{part}.weight"] for part in ("w1", "w3", "w2"))
        nudge = 1 + 2.0**-8
        return swiglu_expert(rows, nudge * w1, nudge * w3, w2, LIMIT, self.numerics)


def dumped(runs: Runs, change: Change | None = None) -> Path:
    """Dump the nudged model as another engine's run, with one tensor changed."""
    folder = runs.new_folder()
    numerics = Numerics.of("sm90")
    claims = replace(facts("sm90"), engine="deepinfer")

    def build(tap: Tap) -> Nudged:
        def changed(site: str, tensor: torch.Tensor) -> torch.Tensor:
            return tap(site, change(site, tensor) if change else tensor)

        return Nudged(CONFIG, WEIGHTS, numerics=numerics, compressed_ids=IDS, tap=changed)

    dump_reference(folder, build, tokens(), ROWS, claims)
    return folder


def test_a_comparison_says_rounding_where_codes_moved_and_accuses_what_is_wrong(runs: Runs) -> None:
    trusted, oracle = runs.run(mode="sm90"), runs.oracle("sm90")
    compare = partial(compare_dumps, trusted, oracle=oracle, full=True)
    findings = [f for f in compare(dumped(runs)).findings if f.site.endswith(".ffn.shared")]
    moved = [finding for finding in findings if finding.origin == "rounding"]
    assert moved and not [finding for finding in findings if finding.origin == "fresh"]
    assert all(f.fresh is not None and f.fresh.details["codes_moved"] for f in moved)
    wrong = dumped(runs, at("layers.2.ffn.shared", lambda x: x * 1.05))
    fresh = {f.site for f in compare(wrong).findings if f.origin == "fresh"}
    assert "layers.2.ffn.shared" in fresh
    nan = dumped(runs, at("layers.2.ffn.shared", lambda x: x / 0 * 0))
    assert compare(nan).verdict.line.startswith("DIVERGED first at layers.2.ffn.shared")
