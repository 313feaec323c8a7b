"""The reference model against facts of the release and against itself."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tests.v41.tiny import CONFIG, compressed_ids, random_weights
from v41 import engram, hyper_connections, indexer
from v41.cache import Cache
from v41.config import RopeScaling
from v41.model import Reference
from v41.numerics import Mode, Numerics
from v41.rope import pair_frequencies
from v41.tap import Recorder

pytestmark = pytest.mark.torch
MODES: tuple[Mode, ...] = ("exact", "trained", "sm90")


def reference(mode: Mode, seed: int = 1) -> Reference:
    return Reference(
        CONFIG,
        random_weights(CONFIG, seed),
        numerics=Numerics.of(mode),
        compressed_ids=compressed_ids(CONFIG),
    )


def tokens(length: int, batch: int = 1, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, CONFIG.vocab_size, (batch, length), generator=generator)


def test_yarn_ramp_of_the_release_lies_between_pairs_15_and_25() -> None:
    scaling = RopeScaling(
        factor=16.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=65536
    )
    plain, scaled = pair_frequencies(160000.0, 64, None), pair_frequencies(160000.0, 64, scaling)
    ratio = (scaled / plain).tolist()
    assert ratio[:16] == [1.0] * 16
    assert ratio[16] < 1.0
    assert ratio[24] > 1 / 16
    assert all(math.isclose(r, 1 / 16) for r in ratio[25:])


def test_engram_tables_of_the_release_have_the_published_sizes() -> None:
    config = dataclasses.replace(
        CONFIG, engram_layer_ids=(1, 14), engram_max_ngram_size=4, engram_n_heads=8,
        engram_vocab_size=16_000_000,
    )  # fmt: skip
    primes = engram.table_primes(config)
    assert primes[1][0][:3] == [16000057, 16000079, 16000081]
    assert primes[14][-1][-1] == 16000889
    assert sum(map(sum, primes[1])) == 384_006_168
    assert sum(map(sum, primes[14])) == 384_016_682


def test_engram_multipliers_of_the_release_are_the_published_ones() -> None:
    assert engram.multipliers(1, 4, 99_092) == [
        76632096046245, 4839876093313, 35959672319349, 73987337458391,
    ]  # fmt: skip
    assert engram.multipliers(14, 4, 99_092) == [
        67716810739261, 51510806800915, 30921347202721, 82619226485591,
    ]  # fmt: skip


def test_engram_looks_back_over_pad_before_the_start_and_stops_at_an_image_token() -> None:
    hashes = engram.EngramHash(
        layer=1, primes=[[11], [13]], factors=[3, 5, 7], compressed_ids=torch.arange(50),
        pad_token_id=2, image_token_id=40,
    )  # fmt: skip
    rows = hashes.rows(torch.tensor([[9, 8, 40, 7, 6]]))[0].tolist()
    assert rows[0] == [((9 * 3) ^ (2 * 5)) % 11, ((9 * 3) ^ (2 * 5) ^ (2 * 7)) % 13 + 11]
    assert rows[1] == [((8 * 3) ^ (9 * 5)) % 11, ((8 * 3) ^ (9 * 5) ^ (2 * 7)) % 13 + 11]
    assert rows[2] == [-1, -1]
    assert rows[3] == [((7 * 3) ^ (2 * 5)) % 11, ((7 * 3) ^ (2 * 5) ^ (2 * 7)) % 13 + 11]
    assert rows[4] == [((6 * 3) ^ (7 * 5)) % 11, ((6 * 3) ^ (7 * 5) ^ (2 * 7)) % 13 + 11]


def test_stream_mixing_matrices_are_doubly_stochastic() -> None:
    weights = random_weights(CONFIG, 3)
    streams = torch.randn(1, 5, CONFIG.hc_mult, CONFIG.hidden_size)
    fn, base, scale = (weights[f"layers.0.hc_attn_{part}"] for part in ("fn", "base", "scale"))
    mix = hyper_connections.mixes(streams, fn, base, scale, CONFIG)
    assert torch.allclose(mix.comb.sum(-1), torch.ones(1, 5, 4), atol=1e-4)
    assert torch.allclose(mix.comb.sum(-2), torch.ones(1, 5, 4), atol=1e-4)
    # new stream k takes comb[j, k] of old stream j: the sum runs over the first index.
    kept = hyper_connections.expand(streams, torch.zeros(1, 5, CONFIG.hidden_size), mix)
    by_hand = sum(mix.comb[0, 2, j, 1] * streams[0, 2, j] for j in range(4))
    assert torch.allclose(kept[0, 2, 1], torch.as_tensor(by_hand), atol=1e-6)


def test_candidates_keep_the_last_visible_block_and_ignore_hidden_scores() -> None:
    scores = torch.tensor([[[9.0, 0, 0, 0, 5, 0, 0, 1, 99, 99]]])
    visible = torch.tensor([[True] * 8 + [False] * 2])
    kept = indexer.candidate_blocks(scores, visible, block_size=2, topk_blocks=2)
    assert kept[0, 0].tolist() == [True, True, False, False, False, False, True, True, False, False]


def test_ties_in_the_selection_go_to_the_lower_entry() -> None:
    scores = torch.tensor([[[1.0, 3.0, 3.0, 3.0, 0.0]]])
    chosen = indexer.select(scores, torch.ones(1, 1, 5, dtype=torch.bool), 2)
    assert chosen[0, 0].nonzero().flatten().tolist() == [1, 2]


def test_nan_scores_are_never_selected_and_a_row_of_them_selects_nothing() -> None:
    nan = float("nan")
    scores = torch.tensor([[[nan, 2.0, nan, 1.0, 3.0], [nan] * 5]])
    allowed = torch.tensor([[[True, True, True, True, False]] * 2])
    chosen = indexer.select(scores, allowed, 3)
    assert chosen[0, 0].tolist() == [False, True, False, True, False]
    assert not chosen[0, 1].any()
    kept = indexer.candidate_blocks(scores, allowed[0], block_size=1, topk_blocks=2)
    assert kept[0, 0].tolist() == [False, True, False, True, False]


def test_many_exact_ties_at_the_cut_give_the_same_choice_whatever_the_threads() -> None:
    scores = torch.rand(1, 1, 4096, generator=torch.Generator().manual_seed(0))
    scores[0, 0, torch.randperm(4096, generator=torch.Generator().manual_seed(1))[:300]] = 0.9
    allowed = torch.ones(1, 1, 4096, dtype=torch.bool)
    threads, choices = torch.get_num_threads(), []
    for run in range(10):
        torch.set_num_threads(1 + run % 2)
        choices.append(indexer.select(scores, allowed, 512))
    torch.set_num_threads(threads)
    assert all(torch.equal(choices[0], other) for other in choices[1:])
    assert int(choices[0].sum()) == 512
    tied = (scores[0, 0] == 0.9).nonzero().flatten()
    taken = choices[0][0, 0, tied]
    assert taken.any(), "the cut lies among the ties or below them"
    assert taken.int().diff().le(0).all(), "of equal scores the lower entries are taken"


def run_in_pieces(model: Reference, prompt: torch.Tensor, split: int) -> torch.Tensor:
    """Prefill `split` tokens, then decode the rest one by one."""
    cache = model.new_cache()
    parts = [model.extend(prompt[:, :split], cache)]
    parts += [model.extend(prompt[:, i : i + 1], cache) for i in range(split, prompt.shape[1])]
    assert cache.length == prompt.shape[1]
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("split", [1, 7, 30])
def test_prefill_in_pieces_and_decode_agree_with_one_prefill(split: int) -> None:
    model, prompt = reference("exact"), tokens(36, batch=2)
    whole = model.extend(prompt, model.new_cache())
    worst = (run_in_pieces(model, prompt, split) - whole).abs().max() / whole.std()
    assert worst < 1e-4, f"worst difference {worst:.2e} of the spread"


@pytest.mark.parametrize("mode", ["trained", "sm90"])
def test_rounded_modes_agree_in_pieces_except_where_a_choice_was_a_near_tie(mode: Mode) -> None:
    # The last fp32 bit of a sum depends on how many rows run at once. Rounding can turn that bit
    # into another expert or another entry for a row, so most rows agree closely and a few do not.
    model, prompt = reference(mode), tokens(36, batch=2)
    whole = model.extend(prompt, model.new_cache())
    worst = (run_in_pieces(model, prompt, 28) - whole).abs().amax(-1) / whole.std()
    share = (worst < 0.2).float().mean().item()
    assert share > 0.8, f"only {share:.0%} of rows agree; worst per row {worst.flatten().tolist()}"


def test_a_token_changes_nothing_before_it() -> None:
    model, prompt = reference("trained"), tokens(40)
    changed = prompt.clone()
    changed[0, 30] = (changed[0, 30] + 5) % CONFIG.vocab_size
    before = model.extend(prompt, model.new_cache())
    after = model.extend(changed, model.new_cache())
    assert torch.equal(before[:, :30], after[:, :30])
    assert not torch.equal(before[:, 30:], after[:, 30:])


def test_a_token_out_of_the_window_is_still_seen_through_compressed_entries() -> None:
    model, prompt = reference("exact"), tokens(40)
    changed = prompt.clone()
    changed[0, 2] = (changed[0, 2] + 5) % CONFIG.vocab_size
    last = [model.extend(p, model.new_cache())[0, -1] for p in (prompt, changed)]
    assert not torch.equal(last[0], last[1])


@pytest.mark.parametrize("mode", ["trained", "sm90"])
def test_rounding_moves_logits_a_little_and_not_a_lot(mode: Mode) -> None:
    prompt = tokens(24)
    exact, rounded = (
        model.extend(prompt, model.new_cache()) for model in (reference("exact"), reference(mode))
    )
    distance = ((rounded - exact).norm() / exact.norm()).item()
    assert 1e-4 < distance < 0.5, f"normalised distance {distance:.3e}"


def test_the_recorder_sees_every_layer_and_the_tap_can_replace_a_tensor() -> None:
    recorder = Recorder()
    weights, ids = random_weights(CONFIG, 1), compressed_ids(CONFIG)
    numerics = Numerics.of("exact")
    model = Reference(CONFIG, weights, numerics=numerics, compressed_ids=ids, tap=recorder)
    normal = model.extend(tokens(8), model.new_cache())
    for index in range(CONFIG.num_hidden_layers):
        assert f"layers.{index}.attn.context" in recorder.tensors
        assert f"layers.{index}.ffn.routed" in recorder.tensors
    assert "layers.1.engram.found" in recorder.tensors

    def zero_context(site: str, tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(tensor) if site == "layers.3.attn.context" else tensor

    broken = Reference(CONFIG, weights, numerics=numerics, compressed_ids=ids, tap=zero_context)
    assert not torch.equal(normal, broken.extend(tokens(8), broken.new_cache()))


def test_gradients_reach_every_weight_that_took_part() -> None:
    weights = {n: w.requires_grad_() for n, w in random_weights(CONFIG, 2).items()}
    model = Reference(
        CONFIG, weights, numerics=Numerics.of("trained"), compressed_ids=compressed_ids(CONFIG)
    )
    logits = model.extend(tokens(32, batch=2), Cache.empty(CONFIG.num_hidden_layers))
    logits.logsumexp(-1).sum().backward()
    # The indexer only chooses, and the router's bias only ranks: no gradient by construction.
    without = {n for n, w in weights.items() if w.grad is None}
    allowed = ("indexer.", "gate.bias", "experts.")
    assert all(any(part in name for part in allowed) for name in without), sorted(without)[:5]
