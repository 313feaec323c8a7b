"""Whole comparisons: what is accused, what is not, and what is never called OK."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dih20.parity.compare import compare_dumps
from dih20.parity.dump import DumpReader, DumpWriter
from dih20.parity.model import Comparison, Finding
from tests.parity.runs import CONFIG, WEIGHTS, Runs, at, facts, tokens

pytestmark = pytest.mark.torch


def accused(comparison: Comparison) -> Finding:
    first = comparison.verdict.first
    assert first is not None, comparison.verdict.line
    assert comparison.verdict.outcome == "diverged"
    return first


def differing(comparison: Comparison) -> dict[tuple[int, str], Finding]:
    return {(f.step, f.site): f for f in comparison.findings if f.diverges}


@pytest.fixture(scope="module")
def wrong_context(runs: Runs) -> Comparison:
    return compare_dumps(runs.trusted, runs.wrong_context, oracle=runs.oracle())


def test_a_run_and_its_repetition_agree(runs: Runs) -> None:
    comparison = compare_dumps(runs.trusted, runs.repeated, oracle=runs.oracle())
    assert comparison.verdict.outcome == "ok", comparison.verdict.line
    assert comparison.verdict.line.startswith("parity OK (synthetic data)")
    assert comparison.floor_measured
    assert not differing(comparison)


def test_the_first_wrong_site_and_its_phase_are_named(wrong_context: Comparison) -> None:
    first = accused(wrong_context)
    assert (first.site, first.phase, first.step) == ("layers.4.attn.context", "decode", 1)
    assert first.layer_kind == "full-r1-candidate-source"
    assert "DIVERGED first at layers.4.attn.context" in wrong_context.verdict.line


def test_errors_that_were_handed_on_are_inherited(wrong_context: Comparison) -> None:
    found = differing(wrong_context)
    assert found[1, "layers.5.attn.input"].origin == "inherited"
    assert found[1, "logits"].origin == "inherited"
    fresh = {key for key, finding in found.items() if finding.origin == "fresh"}
    assert fresh == {(step, "layers.4.attn.context") for step in (1, 2, 3)}


def test_without_a_reference_the_inputs_of_a_site_tell_the_same_first_site(runs: Runs) -> None:
    comparison = compare_dumps(runs.trusted, runs.wrong_context, repeat=runs.repeated)
    assert accused(comparison).site == "layers.4.attn.context"
    assert comparison.floor_measured
    assert not compare_dumps(runs.trusted, runs.wrong_context).floor_measured


def test_statistics_alone_name_the_same_site(runs: Runs) -> None:
    wrong = runs.run(
        at("layers.4.attn.context", lambda x: x * 1.001, decode_only=True), statistics_only=True
    )
    comparison = compare_dumps(runs.trusted, wrong)
    assert accused(comparison).site == "layers.4.attn.context"
    assert accused(comparison).measure.estimated


def test_a_second_fault_behind_the_first_is_seen_by_replay(runs: Runs) -> None:
    def change(site: str, tensor: torch.Tensor) -> torch.Tensor:
        wrong = site in ("layers.2.ffn.shared", "layers.6.attn.q")
        return tensor * 1.01 if wrong else tensor

    comparison = compare_dumps(runs.trusted, runs.run(change), oracle=runs.oracle())
    assert accused(comparison).site == "layers.2.ffn.shared"
    assert differing(comparison)[0, "layers.6.attn.q"].origin == "fresh"


def test_a_wrong_weight_is_named_at_the_site_that_uses_it(runs: Runs) -> None:
    name = "layers.3.attn.wkv.weight"
    wrong = runs.run(weights={**WEIGHTS, name: WEIGHTS[name] * 1.02})
    assert accused(compare_dumps(runs.trusted, wrong, oracle=runs.oracle())).site == (
        "layers.3.attn.window_kv"
    )


def test_nan_in_b_only_is_a_divergence(runs: Runs) -> None:
    wrong = runs.run(at("layers.6.ffn.shared", lambda x: torch.full_like(x, float("nan"))))
    first = accused(compare_dumps(runs.trusted, wrong))
    assert first.site == "layers.6.ffn.shared"
    assert first.measure.details["not_finite_on_one_side"] == CONFIG.hidden_size * 40


def test_scores_that_are_transposed_are_said_to_be(tmp_path: Path) -> None:
    x = torch.randn(1, 6, 6, generator=torch.Generator().manual_seed(0))
    for name, tensor in (("a", x), ("b", x.mT)):
        with DumpWriter(tmp_path / name, facts()) as dump:
            dump.begin_step("prefill", [[5] * 6], range(6))
            dump.add("layers.0.attn.q", tensor)
    comparison = compare_dumps(tmp_path / "a", tmp_path / "b")
    assert accused(comparison).remark == "B's values are A's transposed"


def test_a_choice_that_only_ties_decide_is_not_accused(runs: Runs) -> None:
    """All index scores equal: A takes the lowest entries, B the highest."""

    def level(site: str, tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(tensor) if site == "layers.6.attn.index_scores" else tensor

    def level_and_flip(site: str, tensor: torch.Tensor) -> torch.Tensor:
        if site == "layers.6.attn.chosen" and tensor.shape[1] > 1:
            flipped = tensor.clone()
            flipped[0, -1] = tensor[0, -1].roll(1)
            return flipped
        return level(site, tensor)

    comparison = compare_dumps(runs.run(level), runs.run(level_and_flip))
    found = {(f.step, f.site): f for f in comparison.findings}[0, "layers.6.attn.chosen"]
    assert found.remark.startswith("tie-equivalent")
    assert not found.diverges
    assert found.measure.details["rows_tied"] == 1


def test_other_numerics_drift_and_are_not_accused_when_each_site_is_right(runs: Runs) -> None:
    port = runs.run(mode="sm90")
    comparison = compare_dumps(runs.trusted, port, oracle=runs.oracle("sm90"))
    assert comparison.verdict.outcome == "ok", comparison.verdict.line
    assert "drift apart" in comparison.verdict.line


def test_parity_is_never_ok_while_a_phase_or_case_is_missing(runs: Runs) -> None:
    short = tokens(12)
    a, b = (runs.run(rows=(12,), prompt=short) for _ in range(2))
    verdict = compare_dumps(a, b).verdict
    assert verdict.outcome == "incomplete"
    assert "OK" not in verdict.line
    for case in ("window in decode", "window exceeded", "candidate blocks dropped"):
        assert case in verdict.line


def test_a_prompt_within_top_k_does_not_cover_selection(runs: Runs) -> None:
    short = tokens(10)
    a, b = (runs.run(rows=(8, 1, 1), prompt=short) for _ in range(2))
    comparison = compare_dumps(a, b)
    assert "selection beyond top-k" in comparison.coverage.missing
    assert "reuse-r1 in decode" in comparison.coverage.covered


def test_sites_of_one_dump_only_are_listed(runs: Runs, tmp_path: Path) -> None:
    source = DumpReader(runs.trusted)
    with DumpWriter(tmp_path / "part", source.facts) as dump:
        for step, (rows, positions) in enumerate(
            zip(source.facts.tokens, source.facts.positions, strict=True)
        ):
            dump.begin_step("prefill" if step == 0 else "decode", rows, positions)
            for at_step, site in source.keys:
                if at_step == step and not site.startswith("layers.7.ffn"):
                    dump.add(site, source.tensor(step, site))
    comparison = compare_dumps(runs.trusted, tmp_path / "part")
    assert "layers.7.ffn.output" in comparison.coverage.not_compared
    assert comparison.verdict.outcome == "ok"  # layer 5 is of the same kind and was compared


def test_stored_codes_and_scales_are_compared_apart_and_in_their_sites_place(
    tmp_path: Path,
) -> None:
    """An engine's cache bytes: the values agree, one scale byte does not."""
    torch.manual_seed(0)
    codes = torch.randint(0, 120, (1, 3, 128), dtype=torch.uint8)
    scales = torch.randint(120, 126, (1, 3, 4), dtype=torch.uint8)
    wrong = scales.clone()
    wrong[0, 2, 1] += 1
    for name, stored in (("a", scales), ("b", wrong)):
        with DumpWriter(tmp_path / name, facts()) as dump:
            dump.begin_step("prefill", [[5, 6, 7]], range(3))
            dump.add("layers.0.attn.context", torch.ones(1, 3, 4, 128))
            dump.add("layers.0.attn.window_kv.codes", codes)
            dump.add("layers.0.attn.window_kv.scales", stored)
    comparison = compare_dumps(tmp_path / "a", tmp_path / "b")
    assert [f.site.rsplit(".", 1)[-1] for f in comparison.findings] == [
        "codes",
        "scales",
        "context",
    ]
    first = accused(comparison)
    assert (first.site, first.layer) == ("layers.0.attn.window_kv.scales", 0)
    assert first.measure.coordinate == (0, 2, 1)
    assert first.measure.value == pytest.approx(1 / 12)
