"""Dumps that cannot be compared are refused, each for its own reason, and never called OK."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from dih20.errors import DumpUnusable
from dih20.parity.compare import compare_dumps
from dih20.parity.dump import DumpWriter
from tests.parity.runs import CONFIG, WEIGHTS, Runs, at, facts, tokens

pytestmark = pytest.mark.torch


def refused(a: Path, b: Path, match: str) -> None:
    with pytest.raises(DumpUnusable, match=match) as caught:
        compare_dumps(a, b)
    assert caught.value.expected and caught.value.remedy


def test_other_tokens(runs: Runs) -> None:
    refused(runs.trusted, runs.run(prompt=tokens(seed=5)), "other tokens: A step 0")


def test_another_number_of_steps(runs: Runs) -> None:
    refused(runs.trusted, runs.run(rows=(40, 1)), "other tokens: A 4 steps, B 2 steps")


def test_other_positions(tmp_path: Path) -> None:
    for name, positions in (("a", [0, 1]), ("b", [1, 2])):
        with DumpWriter(tmp_path / name, facts()) as dump:
            dump.begin_step("prefill", [[5, 6]], positions)
            dump.add("embed", torch.ones(1, 2, 4))
    refused(tmp_path / "a", tmp_path / "b", "other positions")


def test_another_config(runs: Runs) -> None:
    other = dataclasses.replace(facts(), config={**facts().config, "index_topk": 16})
    refused(runs.trusted, runs.run(claims=other), "other config key 'index_topk': A 8, B 16")


def test_other_weights(runs: Runs) -> None:
    refused(runs.trusted, runs.run(claims=facts(weights="others")), "other weights")


def test_one_folder_twice_even_through_a_link(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(runs.trusted)
    refused(runs.trusted, tmp_path / "link", "are both")


def test_nan_on_both_sides_and_nan_in_the_trusted_run_are_different_errors(runs: Runs) -> None:
    def spoil(x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(torch.arange(x.shape[-1]) == 3, float("nan"))

    spoiled = runs.run(at("layers.5.attn.next_pre", spoil))
    again = runs.run(at("layers.5.attn.next_pre", spoil))
    refused(spoiled, again, "layers.5.attn.next_pre, step 0: NaN on both sides")
    refused(spoiled, runs.trusted, "NaN in A, the run that is trusted")


def two_dumps(folder: Path, a: torch.Tensor, b: torch.Tensor) -> tuple[Path, Path]:
    for name, tensor in (("a", a), ("b", b)):
        with DumpWriter(folder / name, facts()) as dump:
            dump.begin_step("prefill", [[5, 6, 7]], [0, 1, 2])
            dump.add("layers.0.attn.q", tensor)
    return folder / "a", folder / "b"


def test_a_transposed_tensor(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 4, 8)
    refused(*two_dumps(tmp_path, x, x.transpose(1, 2)), "its dimensions are transposed")


def test_another_shape(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 4, 8)
    refused(*two_dumps(tmp_path, x, x[..., :6]), r"is \(1, 3, 4, 6\) in B and \(1, 3, 4, 8\) in A")


def test_another_dtype_unless_values_are_asked_for(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 4, 8).bfloat16()
    a, b = two_dumps(tmp_path, x.float(), x)
    refused(a, b, "is bfloat16 in B and float32 in A")
    comparison = compare_dumps(a, b, as_values=True)
    assert comparison.findings[0].measure.value == 0.0
    assert comparison.verdict.outcome == "incomplete"


def test_no_site_in_common(tmp_path: Path) -> None:
    for name, site in (("a", "layers.0.attn.q"), ("b", "layers.1.attn.q")):
        with DumpWriter(tmp_path / name, facts()) as dump:
            dump.begin_step("prefill", [[5]], [0])
            dump.add(site, torch.ones(1, 1, 4, 8))
    refused(tmp_path / "a", tmp_path / "b", "no site is in both")


def test_the_same_tensor_under_every_layers_name(tmp_path: Path, runs: Runs) -> None:
    x = torch.randn(1, 3, 8)
    for name in ("a", "b"):
        with DumpWriter(tmp_path / name, facts()) as dump:
            dump.begin_step("prefill", [[5, 6, 7]], [0, 1, 2])
            for layer in range(CONFIG.num_hidden_layers):
                dump.add(f"layers.{layer}.attn.norm", x)
    refused(tmp_path / "a", tmp_path / "b", "attn.norm is the same tensor in all 8 layers")


def test_a_truncated_file_in_either_dump(runs: Runs, tmp_path: Path) -> None:
    shutil.copytree(runs.trusted, tmp_path / "cut")
    path = tmp_path / "cut" / "step-0000.rank-0.safetensors"
    path.write_bytes(path.read_bytes()[: -(1 << 10)])
    refused(tmp_path / "cut", runs.repeated, "not a whole safetensors file")
    refused(runs.repeated, tmp_path / "cut", "not a whole safetensors file")


def test_a_missing_dump(runs: Runs, tmp_path: Path) -> None:
    refused(runs.trusted, tmp_path / "none", "no such folder")


def test_a_repetition_of_other_tokens_is_no_noise_floor(runs: Runs) -> None:
    other = runs.run(prompt=tokens(seed=6))
    with pytest.raises(DumpUnusable, match="is not a repetition"):
        compare_dumps(runs.trusted, runs.repeated, repeat=other)
    with pytest.raises(DumpUnusable, match="is not a repetition"):
        compare_dumps(runs.trusted, runs.repeated, repeat=runs.trusted)


def test_a_reference_of_other_weights_is_refused(runs: Runs) -> None:
    oracle = dataclasses.replace(runs.oracle(), weights_hash="others")
    with pytest.raises(DumpUnusable, match="was made with weights tiny"):
        compare_dumps(runs.trusted, runs.wrong_context, oracle=oracle)


def test_a_reference_of_another_config_is_refused(runs: Runs) -> None:
    oracle = runs.oracle()
    other = dataclasses.replace(oracle, config=dataclasses.replace(oracle.config, index_topk=4))
    with pytest.raises(DumpUnusable, match="was made with index_topk 8, the reference 4"):
        compare_dumps(runs.trusted, runs.wrong_context, oracle=other)


def test_a_reference_that_does_not_reproduce_the_trusted_run_is_refused(runs: Runs) -> None:
    oracle = runs.oracle()
    name = "layers.0.attn.wkv.weight"
    other = dataclasses.replace(oracle, weights={**WEIGHTS, name: WEIGHTS[name] * 1.1})
    with pytest.raises(DumpUnusable, match=r"layers\.0\.attn\.window_kv.*A and B agree"):
        compare_dumps(runs.trusted, runs.wrong_context, oracle=other, repeat=runs.repeated)
