"""The canary's start: a circuit that looks facts up, written into otherwise random weights.

Training from random weights would have to find this circuit first; here it is given, and training
goes on from it. Hidden channels, by what they hold (one channel per name or part of a city):

    CONST       a constant, so that norms stay alike
    GIVEN, SURNAME, CITY    the token itself; a city is three digits, 4 * 4 * 2 = 32
    BEFORE_GIVEN, BEFORE_CITY    the same of the token before      (layer 0, head 0, one back)
    BEFORE2_SURNAME              the same of the one before that   (layer 0, head 1, two back)
    OWNER_GIVEN, OWNER_SURNAME   both, as seen two tokens back     (layer 1, two back)
    ANSWER      the digits that layers 3, 4 and 5 fetch, one digit each
    FREE        everything else: other tokens, Engram, experts

In 王伟住北京， the comma's compressed entry holds owner and city; in 问：王伟住 the last token holds
the same name one and two tokens back. Layers 3 to 5 compare the two. Each of them fetches one digit
of the city, so an answer is right only if all three select the right entry.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from v41.canary.tokenizer import Tokenizer
from v41.canary.vocabulary import CITIES, GIVEN_NAMES, SURNAMES
from v41.config import ModelConfig
from v41.rope import pair_frequencies

Weights = dict[str, torch.Tensor]
Noise = Callable[..., torch.Tensor]  # sizes -> standard normal values

CONST = 0
GIVEN, SURNAME, CITY = slice(32, 72), slice(72, 96), slice(96, 106)
BEFORE_GIVEN, BEFORE_CITY, BEFORE2_SURNAME = slice(128, 168), slice(168, 178), slice(192, 216)
OWNER_GIVEN, OWNER_SURNAME = slice(224, 264), slice(264, 288)
ANSWER = slice(288, 298)
FREE = slice(320, 512)
DIGITS = (slice(8, 10), slice(4, 8), slice(0, 4))  # of CITY and ANSWER: layers 3, 4, 5

_ONE = 8.0  # a channel that is on
_CONSTANT = 16.0
_PAIRS = 8  # rotary pairs that tell distances apart
_NOPE = 448
_MIXING_SINK = 4.5  # of heads that average: a short prompt's keys get a seventh of the attention


def city_digits() -> torch.Tensor:
    """Give each city's three digits as on and off channels: (32, 10)."""
    number = torch.arange(len(CITIES))
    parts = (number % 4, number // 4 % 4 + 4, number // 16 + 8)
    return torch.stack([torch.nn.functional.one_hot(part, 10) for part in parts]).sum(0).float()


def write_circuit(config: ModelConfig, weights: Weights, generator: torch.Generator) -> None:
    """Write the circuit over random weights, in place."""

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    _streams(config, weights, noise)
    _tokens(weights, noise)
    _look_back(config, weights, 0, (1, 2), noise)
    _look_back(config, weights, 1, (2, 2), noise)
    for digit, layer in enumerate((3, 4, 5)):
        _fetch(config, weights, layer, digit, noise)
    _entries(weights, noise)
    for layer in (3, 5):
        _index_query(config, weights, layer, noise)
    for layer in range(config.num_hidden_layers):
        for name, weight in weights.items():
            if name.startswith(f"layers.{layer}.ffn.") and name.endswith("w2.weight"):
                weight[: FREE.start] = 0.0
    mixing = weights["layers.2.attn.wo_b.weight"]
    mixing[: FREE.start] = 0.0
    mixing *= 16.0
    weights["layers.2.attn.attn_sink"].fill_(_MIXING_SINK)
    value = weights["layers.1.engram.wkv.weight"][-config.hidden_size :]
    value[: FREE.start] = 0.0
    value *= 3.0


def _streams(config: ModelConfig, w: Weights, noise: Noise) -> None:
    """Mix the streams like one plain residual: averaged in, added to each, kept apart."""
    n = config.hc_mult
    for layer in range(config.num_hidden_layers):
        for part in ("attn", "ffn"):
            name = f"layers.{layer}.hc_{part}"
            base = w[f"{name}_base"]
            base[:n] = torch.logit(torch.tensor(1.0 / n)) + 0.02 * noise(n)
            base[n : 2 * n] = 0.02 * noise(n)
            base[2 * n :] = (7.0 * torch.eye(n)).flatten() + 0.1 * noise(n * n)
            w[f"{name}_fn"] *= 0.1
            w[f"{name}_scale"].fill_(0.5)


def _tokens(w: Weights, noise: Noise) -> None:
    vocab = Tokenizer.build().vocab
    embed, head = w["embed.weight"], w["head.weight"]
    codes = noise(embed.shape[0], FREE.stop - FREE.start)
    embed.zero_()
    embed[:, FREE] = codes / codes.norm(dim=1, keepdim=True) * _ONE
    embed[:, CONST] = _CONSTANT
    for names, channels in ((GIVEN_NAMES, GIVEN), (SURNAMES, SURNAME)):
        for place, name in enumerate(names):
            embed[vocab[name], FREE] = 0.0
            embed[vocab[name], channels.start + place] = _ONE
    head *= 0.3
    head[:, : FREE.start] = 0.0
    head[:, ANSWER] = -0.3
    for name, digits in zip(CITIES, city_digits(), strict=True):
        embed[vocab[name], FREE] = 0.0
        embed[vocab[name], CITY] = digits * _ONE / 3**0.5
        head[vocab[name], ANSWER] = digits * 1.2 - 0.3


def _identity(weight: torch.Tensor, rows: slice, columns: slice, gain: float) -> None:
    weight[rows, columns] = gain * torch.eye(rows.stop - rows.start)


def _look_back(
    config: ModelConfig, w: Weights, layer: int, distances: tuple[int, int], noise: Noise
) -> None:
    """Make each head of a window layer read one fixed distance back."""
    site, rotary = f"layers.{layer}.attn", config.qk_rope_head_dim
    scaling = config.rope_scaling if layer else None
    theta = config.compress_rope_theta if layer else config.rope_theta
    angles = pair_frequencies(theta, rotary, scaling)[:_PAIRS].float()
    wq_a, wq_b, wkv = (w[f"{site}.{name}.weight"] for name in ("wq_a", "wq_b", "wkv"))
    wq_a.mul_(0.02)
    wq_a[:, CONST] = 0.0
    wq_a[0, CONST] = 1.0
    wq_b.mul_(0.1)
    wq_b[:, 0] = 0.0
    for head, distance in enumerate(distances):
        first = head * config.head_dim + _NOPE
        wq_b[first : first + 2 * _PAIRS : 2, 0] = 3.4 * torch.cos(-distance * angles)
        wq_b[first + 1 : first + 2 * _PAIRS : 2, 0] = 3.4 * torch.sin(-distance * angles)
    wkv.zero_()
    wkv[_NOPE : _NOPE + 2 * _PAIRS : 2, CONST] = 0.25
    wkv[96:224, FREE] = 0.3 * noise(128, FREE.stop - FREE.start) / 24
    wo_a, wo_b = w[f"{site}.wo_a.weight"], w[f"{site}.wo_b.weight"]
    rank = config.o_lora_rank
    wo_a.zero_()
    wo_b.zero_()
    read: tuple[tuple[slice, slice], ...]
    written: tuple[tuple[int, slice, slice], ...]
    if layer == 0:
        read = ((GIVEN, slice(0, 40)), (CITY, slice(40, 50)), (SURNAME, slice(64, 88)))
        written = ((0, slice(0, 40), BEFORE_GIVEN), (0, slice(40, 50), BEFORE_CITY),
                   (1, slice(64, 88), BEFORE2_SURNAME))  # fmt: skip
    else:
        read = ((BEFORE_GIVEN, slice(0, 40)), (BEFORE2_SURNAME, slice(64, 88)))
        written = ((0, slice(0, 40), OWNER_GIVEN), (1, slice(64, 88), OWNER_SURNAME))
    for channels, rows in read:
        _identity(wkv, rows, channels, 0.3)
    for head, rows, channels in written:
        low = slice(head * rank + rows.start, head * rank + rows.stop)
        _identity(wo_a, low, rows, 1.0)
        _identity(wo_b, channels, low, 1.6)
    for head in (0, 1):  # the rest of the rank carries other tokens along
        low = slice(head * rank + 96, (head + 1) * rank)
        wo_a[low, 96:224] = noise(32, 128) / 128**0.5
        wo_b[FREE, low] = 0.5 * noise(FREE.stop - FREE.start, 32) / 32**0.5


def _entries(w: Weights, noise: Noise) -> None:
    """Make layer 3's compressed entries hold owner, city and a constant; index keys the owner."""
    site = "layers.3.attn"
    compress = w[f"{site}.compressor.wkv.weight"]
    compress.mul_(0.1)
    compress[:, : FREE.start] = 0.0
    compress[:128] = 0.0
    for channels, rows in (
        (OWNER_GIVEN, slice(0, 40)), (OWNER_SURNAME, slice(40, 64)), (BEFORE_CITY, slice(64, 74)),
    ):  # fmt: skip
        _identity(compress, rows, channels, 1.0)
    compress[96, CONST] = 0.8
    key = w[f"{site}.indexer.wk.weight"]
    key.mul_(0.05)
    key[:64] = 0.0
    _identity(key, slice(0, 64), slice(0, 64), 1.0)
    key[126, 96] = 0.8


def _match_query(w: Weights, site: str) -> None:
    """Make the low-rank query hold the name before, and a constant."""
    wq_a = w[f"{site}.wq_a.weight"]
    wq_a[:65] = 0.0
    wq_a[65:] *= 0.2
    wq_a[65:, : FREE.start] = 0.0
    _identity(wq_a, slice(0, 40), BEFORE_GIVEN, 1.0)
    _identity(wq_a, slice(40, 64), BEFORE2_SURNAME, 1.0)
    wq_a[64, CONST] = 0.5


def _fetch(config: ModelConfig, w: Weights, layer: int, digit: int, noise: Noise) -> None:
    """Make head 0 of a layer fetch one digit of the city; head 1 stays free."""
    site, dim = f"layers.{layer}.attn", config.head_dim
    _match_query(w, site)
    wq_b = w[f"{site}.wq_b.weight"]
    wq_b[:dim] = 0.0
    _identity(wq_b, slice(0, 64), slice(0, 64), 5.5)
    wkv = w[f"{site}.wkv.weight"]
    wkv[:, : FREE.start] = 0.0
    wkv[:128] = 0.0
    wkv[128, CONST] = 0.5
    wo_a, wo_b = w[f"{site}.wo_a.weight"], w[f"{site}.wo_b.weight"]
    rank, where = config.o_lora_rank, DIGITS[digit]
    count = where.stop - where.start
    wo_a[:rank] = 0.0
    wo_a[:count, 64 + where.start : 64 + where.stop] = torch.eye(count)
    wo_b[:, :rank] = 0.0
    wo_b[: FREE.start] = 0.0
    wo_b *= 2.0
    wo_b[ANSWER.start + where.start : ANSWER.start + where.stop, :count] = 2.2 * torch.eye(count)
    w[f"{site}.attn_sink"].copy_(torch.tensor([12.0, _MIXING_SINK]))


def _index_query(config: ModelConfig, w: Weights, layer: int, noise: Noise) -> None:
    site, dim = f"layers.{layer}.attn", config.index_head_dim
    query = w[f"{site}.indexer.wq_b.weight"]
    query.mul_(0.1)
    query[:, 65:] *= 0.3
    for head in range(config.index_n_heads):
        rows = slice(head * dim, head * dim + 64)
        query[rows] = 0.0
        _identity(query, rows, slice(0, 64), 1.0)
    weights = w[f"{site}.indexer.weights_proj.weight"]
    weights.mul_(0.02)
    weights[:, CONST] = 0.06


def train_mask(name: str, weight: torch.Tensor) -> torch.Tensor | None:
    """Give 1 where training may change a stacked weight and 0 where not; None to keep all of it."""
    if name.endswith((".bias", ".bias_vl", "attn_norm.weight")) or ".shared_experts." in name:
        return None
    if name == "embed.weight" or (".attn." in name and not name.startswith("layers.2.")):
        return None
    if name == "layers.2.attn.wo_b.weight":
        return _only_free(weight, 0)
    mask = torch.ones_like(weight)
    if ".ffn.experts." in name and ".w2" in name:
        return _only_free(weight, weight.dim() - 2)
    if name.endswith("engram.wkv.weight"):
        mask[-512:] = _only_free(weight[-512:], 0)
    elif name == "head.weight":
        mask[:, : FREE.start] = 0.0
    return mask


def _only_free(weight: torch.Tensor, dim: int) -> torch.Tensor:
    mask = torch.zeros_like(weight)
    mask.narrow(dim, FREE.start, FREE.stop - FREE.start).fill_(1.0)
    return mask
