"""Signatures rest on predicted tensors: each prediction is checked by other means here."""

from __future__ import annotations

import pytest
import torch

from dih20.parity.diagnosis import paged_cache
from dih20.parity.diagnosis.hypothesis import NAN_THROUGHOUT, explained
from dih20.parity.diagnosis.rotations import half_split
from dih20.parity.diagnosis.rounding import cast_with_ties, usual_cast
from dih20.parity.diagnosis.signatures import BY_SITE, MINIMUM
from dih20.parity.sabotage.cache_faults import read_right
from dih20.parity.sites import causal_sites
from h20_ops.formats import GROUP_RULES, dequantise_groups, quantise_groups
from tests.parity.sabotage_base import SABOTAGED_CONFIG
from v41.rope import Rope

pytestmark = pytest.mark.torch


def test_a_prediction_explains_all_half_or_nothing_of_an_error() -> None:
    clean, seen = torch.zeros(8), torch.full((8,), 2.0)
    assert explained(seen, clean, seen) == 1.0
    assert explained(seen, clean, torch.ones(8)) == pytest.approx(0.5)
    assert explained(seen, clean, clean) == 0.0
    assert explained(seen, clean, torch.full((8,), -2.0)) < 0.0
    assert explained(seen, clean, torch.zeros(4)) == 0.0


def test_rounding_noise_does_not_hide_a_cause_and_is_not_taken_for_one() -> None:
    generator = torch.Generator().manual_seed(0)
    clean, fault = torch.randn(2, 4096, generator=generator)
    noise = 0.004 * torch.randn(4096, generator=generator)
    seen = clean + 0.05 * fault + noise
    assert explained(seen, clean, clean + 0.05 * fault) > MINIMUM
    assert explained(clean + noise, clean, clean + 0.05 * fault) < 0.0


def test_choices_are_explained_by_counting_differing_elements() -> None:
    clean = torch.tensor([True, True, False, False])
    seen = torch.tensor([True, False, True, False])
    assert explained(seen, clean, seen) == 1.0
    assert explained(seen, clean, torch.tensor([True, False, False, False])) == 0.5


def test_nan_throughout_speaks_weakly_and_nan_in_other_places_not_at_all() -> None:
    clean, nan = torch.zeros(4), torch.full((4,), torch.nan)
    assert explained(nan, clean, nan) == NAN_THROUGHOUT
    assert explained(nan, clean, clean) == 0.0
    some = torch.tensor([torch.nan, 0.0, 0.0, 0.0])
    assert explained(some, clean, nan) == 0.0
    assert explained(some, clean, some) == 1.0


def test_half_split_pairs_channel_i_with_the_one_half_a_width_on() -> None:
    rope = Rope(SABOTAGED_CONFIG, compressed=False)
    x = torch.zeros(1, 1, 128)
    x[0, 0, 64] = 1.0  # the first rotary channel; its partner is 32 further
    turned = half_split(rope, x, torch.tensor([1]))
    assert turned[0, 0].nonzero().flatten().tolist() == [64, 96]
    assert turned[0, 0, 64] == pytest.approx(torch.cos(torch.tensor(1.0)).item())
    assert turned[0, 0, 96] == pytest.approx(torch.sin(torch.tensor(1.0)).item())


@pytest.mark.parametrize(
    ("rule", "ratio", "to_even", "away", "down"),
    [
        ("fp4_32_ue8m0", 0.25, 0.0, 0.5, 0.0),
        ("fp4_32_ue8m0", 3.5, 4.0, 4.0, 3.0),
        ("fp8_32_ue8m0", 17.0, 16.0, 18.0, 16.0),
    ],
)
def test_only_halfway_values_go_elsewhere(
    rule: str, ratio: float, to_even: float, away: float, down: float
) -> None:
    x = torch.zeros(1, 32)
    x[0, 0] = GROUP_RULES[rule].max_value  # so that the scale is 1
    x[0, 1], x[0, 2] = ratio, ratio * 1.02
    usual = usual_cast(x, rule)
    assert usual[0, 1] == to_even
    assert cast_with_ties(x, rule, "away")[0, 1] == away
    assert cast_with_ties(x, rule, "down")[0, 1] == down
    for ties in (cast_with_ties(x, rule, "away"), cast_with_ties(x, rule, "down")):
        assert torch.equal(ties[0, 2:], usual[0, 2:])


def test_a_right_reader_of_the_rebuilt_pages_finds_every_entry() -> None:
    generator = torch.Generator().manual_seed(1)

    def rounded(count: int, rule: str) -> torch.Tensor:
        x = torch.randn(count, 128, generator=generator)
        return dequantise_groups(*quantise_groups(x, GROUP_RULES[rule]), GROUP_RULES[rule])

    sources = {
        layer: paged_cache.SourcePages(
            ratio=ratio,
            entries=rounded(60 // ratio, "fp4_16_e4m3"),
            keys=rounded(60 // ratio, "fp4_32_ue8m0"),
        )
        for layer, ratio in ((1, 2), (3, 1))
    }
    views = paged_cache.build(sources, first_block=2, block_tokens=16)
    for layer, pages in sources.items():
        view = views[layer]
        assert view.stride > view.page_size * view.record, "pages must not be dense"
        for index in range(pages.entries.shape[0]):
            page, slot = divmod(index, view.page_size)
            assert torch.equal(read_right(view, 2 + page, slot), pages.entries[index])


def test_every_signature_belongs_to_a_site_of_the_model() -> None:
    leaves = {f"{site.part}.{site.leaf}" for site in causal_sites(SABOTAGED_CONFIG) if site.part}
    assert set(BY_SITE) <= leaves
