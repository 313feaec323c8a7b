"""Capture of a module tree by a site map: no source edits, put back afterwards, ranks merged."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from dih20.errors import ConfigError, DumpUnusable
from dih20.parity.compare import compare_dumps
from dih20.parity.dump import DumpReader, DumpWriter
from dih20.parity.model import RunFacts, Shard
from dih20.parity.module_capture import ModuleCapture
from dih20.parity.site_map import MAPS, load_map
from dih20.parity.sites import is_site
from tests.parity.runs import CONFIG, facts

pytestmark = pytest.mark.torch

MAP = """
engine: toy
step: {at: "", tokens: arg.meta.ids, positions: arg.meta.positions, prefill: arg.meta.is_prompt}
sites:
  - {site: embed, at: embed, shape: tokens}
  - {site: "layers.{layer}.attn.norm", at: "layers.{layer}", call: mix, take: result.1, shape: tokens}
  - {site: "layers.{layer}.attn.q", at: "layers.{layer}.attn", take: arg.q, shape: tokens, shard: {merge: concat, dim: 2}}
  - {site: "layers.{layer}.attn.output", at: "layers.{layer}.attn", shape: tokens, shard: {merge: sum}}
"""


class Meta:
    def __init__(self, ids: list[int], first: int) -> None:
        self.ids = torch.tensor(ids)
        self.positions = torch.arange(first, first + len(ids))
        self.is_prompt = first == 0


class Attention(torch.nn.Module):  # type: ignore[misc]
    """One rank's heads: scale them, add them up."""

    def __init__(self, scale: float, heads: slice) -> None:
        super().__init__()
        self.scale, self.heads = scale, heads

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        weight = torch.arange(1.0, 5.0)[self.heads]
        return (q * self.scale * weight.view(1, -1, 1)).sum(dim=1)


class Layer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, scale: float, heads: slice) -> None:
        super().__init__()
        self.attn = Attention(scale, heads)

    def mix(self, x: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, x / 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, normed = self.mix(x)
        heads = torch.stack([normed * (h + 1) for h in range(4)], dim=1)
        self.attn(heads[:, self.attn.heads])  # the sum over ranks comes after this
        return x + normed


class Toy(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, heads: slice = slice(0, 4)) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10, 6)
        self.layers = torch.nn.ModuleList([Layer(1.0, heads), Layer(3.0, heads)])
        torch.nn.init.normal_(self.embed.weight, generator=torch.Generator().manual_seed(0))

    def forward(self, meta: Meta) -> torch.Tensor:
        x: torch.Tensor = self.embed(meta.ids)
        for layer in self.layers:
            x = layer(x)
        return x


def map_file(folder: Path, text: str = MAP) -> str:
    path = folder / "toy.yaml"
    path.write_text(text)
    return str(path)


def toy_facts(world: int) -> RunFacts:
    return dataclasses.replace(facts(), engine="toy", world=world)


def capture(folder: Path, name: str, rank: int, world: int, heads: slice) -> Toy:
    model = Toy(heads)
    site_map = load_map(map_file(folder))
    with torch.no_grad(), DumpWriter(folder / name, toy_facts(world), rank=rank) as writer:
        with ModuleCapture(model, site_map, writer, world=world):
            model(meta=Meta([1, 2, 3], 0))
            model(Meta([4], 3))
    return model


def test_sites_phases_and_shapes_come_from_the_calls(tmp_path: Path) -> None:
    capture(tmp_path, "one", 0, 1, slice(0, 4))
    dump = DumpReader(tmp_path / "one")
    assert dump.facts.tokens == (((1, 2, 3),), ((4,),))
    assert dump.facts.positions == ((0, 1, 2), (3,))
    assert [dump.record(step, "embed").phase for step in (0, 1)] == ["prefill", "decode"]
    assert dump.shape(0, "layers.1.attn.q") == (1, 3, 4, 6)
    assert torch.equal(dump.tensor(0, "layers.0.attn.norm") * 2, dump.tensor(0, "embed"))


def test_every_call_is_put_back_also_after_an_error(tmp_path: Path) -> None:
    model = Toy()
    before = [dict(vars(module)) for module in model.modules()]
    site_map = load_map(map_file(tmp_path))
    with pytest.raises(ZeroDivisionError), DumpWriter(tmp_path / "d", facts()) as writer:
        with ModuleCapture(model, site_map, writer):
            assert "forward" in vars(model)
            _ = 1 / 0
    assert [dict(vars(module)) for module in model.modules()] == before


def test_a_tensor_parallel_dump_is_merged_and_equals_the_whole_run(tmp_path: Path) -> None:
    capture(tmp_path, "whole", 0, 1, slice(0, 4))
    for rank in (0, 1):
        capture(tmp_path, "ranks", rank, 2, slice(2 * rank, 2 * rank + 2))
    merged, whole = DumpReader(tmp_path / "ranks"), DumpReader(tmp_path / "whole")
    for step, site in whole.keys:
        assert torch.allclose(merged.tensor(step, site), whole.tensor(step, site)), (step, site)
        assert merged.shape(step, site) == whole.shape(step, site)
    comparison = compare_dumps(tmp_path / "whole", tmp_path / "ranks")
    assert max(finding.measure.value for finding in comparison.findings) < 1e-12


def test_a_summand_taken_for_a_copy_is_refused(tmp_path: Path) -> None:
    wrong = MAP.replace("shape: tokens, shard: {merge: sum}", "shape: tokens")
    for rank in (0, 1):
        model = Toy(slice(2 * rank, 2 * rank + 2))
        site_map = load_map(map_file(tmp_path, wrong))
        with torch.no_grad(), DumpWriter(tmp_path / "ranks", toy_facts(2), rank=rank) as writer:
            with ModuleCapture(model, site_map, writer, world=2):
                model(Meta([1, 2, 3], 0))
                model(Meta([4], 3))
    capture(tmp_path, "whole", 0, 1, slice(0, 4))
    with pytest.raises(DumpUnusable, match=r"rank 1's copy of layers\.0\.attn\.output"):
        compare_dumps(tmp_path / "whole", tmp_path / "ranks")


def test_a_dump_without_one_of_its_ranks_is_refused(tmp_path: Path) -> None:
    capture(tmp_path, "ranks", 0, 2, slice(0, 2))
    with pytest.raises(DumpUnusable, match="indexes of 1 ranks"):
        DumpReader(tmp_path / "ranks")


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("at: embed", "at: embedding", "no module embedding"),
        ("call: mix", "call: blend", "Layer has no method blend"),
        ("take: arg.q", "take: arg.k", "no argument 'k'"),
        ("take: result.1", "take: result.0", "is a NoneType"),
    ],
)
def test_a_map_of_another_engine_says_what_does_not_fit(
    tmp_path: Path, old: str, new: str, match: str
) -> None:
    site_map = load_map(map_file(tmp_path, MAP.replace(old, new)))
    model = Toy()
    with pytest.raises(DumpUnusable, match=match), DumpWriter(tmp_path / "d", facts()) as writer:
        with ModuleCapture(model, site_map, writer):
            model(Meta([1], 0))


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("at: embed,", "att: embed,", r"unknown key sites\[0\].att"),
        ("merge: sum", "merge: avg", r"sites\[3\].shard.merge is 'avg'"),
        ("shape: tokens}", "shape: rows}", r"sites\[0\].shape is 'rows'"),
        ("engine: toy", "engin: toy", "unknown key engin"),
        ("sites:", "places:", "no list `sites`"),
        ("{site: embed, at: embed, shape: tokens}", "{site: embed}", "needs `site` and `at`"),
    ],
)
def test_a_wrong_key_in_a_map_is_named_with_its_path(
    tmp_path: Path, old: str, new: str, match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        load_map(map_file(tmp_path, MAP.replace(old, new, 1)))


@pytest.mark.parametrize("path", sorted(MAPS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_maps_of_the_repository_name_sites_that_the_model_has(path: Path) -> None:
    engram_layer = CONFIG.engram_layer_ids[0]
    for rule in load_map(path.stem).sites:
        assert is_site(rule.site.replace("{layer}", str(engram_layer)), CONFIG), rule.site


def test_an_unknown_map_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no site map 'vllm'") as caught:
        load_map("vllm")
    assert "deepinfer, official, reference" in caught.value.expected


def test_tensor_parallel_and_expert_parallel_parts_are_the_same_tensor(tmp_path: Path) -> None:
    """Two ways to share out an FFN of four experts: half of each, or two experts each."""
    torch.manual_seed(0)
    hidden, w1, w2 = torch.randn(3, 8), torch.randn(4, 8, 6), torch.randn(4, 6, 8)

    def part(experts: slice, inner: slice) -> torch.Tensor:
        up = torch.einsum("td,edi->eti", hidden, w1[experts, :, inner])
        return torch.einsum("eti,eid->td", up.relu(), w2[experts, inner])

    ranks = {
        "tp": [part(slice(0, 4), slice(0, 3)), part(slice(0, 4), slice(3, 6))],
        "ep": [part(slice(0, 2), slice(0, 6)), part(slice(2, 4), slice(0, 6))],
    }
    for name, parts in ranks.items():
        for rank, tensor in enumerate(parts):
            with DumpWriter(tmp_path / name, toy_facts(2), rank=rank) as dump:
                dump.begin_step("prefill", [[1, 2, 3]], range(3))
                dump.add("layers.0.ffn.routed", tensor, Shard(merge="sum", world=2))
    assert not torch.allclose(ranks["tp"][0], ranks["ep"][0])
    (finding,) = compare_dumps(tmp_path / "tp", tmp_path / "ep").findings
    assert finding.measure.value < 1e-12
