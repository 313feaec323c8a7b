"""Every site of the model: its name, how it is compared, its causal order, and what it is made of."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from dih20.parity.model import Site, SiteKind
from v41.config import LayerKind, ModelConfig

_Leaf = tuple[str, SiteKind, str | None]

_ENGRAM: tuple[_Leaf, ...] = (
    ("rows", "integer", None),
    ("found", "dense", None),
    ("streams", "dense", None),
)
_ATTN_HEAD: tuple[_Leaf, ...] = (
    ("input", "dense", None),
    ("norm", "dense", None),
    ("q_low", "dense", None),
    ("q", "dense", None),
    ("window_kv", "quantised", "fp8_32_ue8m0"),
)
_ATTN_KV: tuple[_Leaf, ...] = (
    ("latent", "dense", None),
    ("compressed_kv", "quantised", "fp4_16_e4m3"),
    ("index_key", "quantised", "fp4_32_ue8m0"),
)
_ATTN_INDEX: tuple[_Leaf, ...] = (
    ("index_query", "quantised", "fp4_32_ue8m0"),
    ("index_scores", "scores", None),
    ("chosen", "selection", None),
)
_ATTN_TAIL: tuple[_Leaf, ...] = (
    ("context", "dense", None),
    ("context_unrotated", "dense", None),
    ("output", "dense", None),
    ("next_pre", "dense", None),
    ("streams", "dense", None),
)
_FFN: tuple[_Leaf, ...] = (
    ("input", "dense", None),
    ("norm", "dense", None),
    ("expert_ids", "expert_ids", None),
    ("expert_weights", "dense", None),
    ("routed", "dense", None),
    ("shared", "dense", None),
    ("output", "dense", None),
    ("next_pre", "dense", None),
    ("streams", "dense", None),
)
STORED_PARTS = frozenset({"codes", "scales"})
# Made of every earlier step's tensor too: what a cache or a pending group keeps.
KEPT_OVER_STEPS = frozenset({"window_kv", "compressed_kv", "index_key", "latent"})


@cache
def causal_sites(config: ModelConfig) -> tuple[Site, ...]:
    """Give every site of one forward pass, in the order the model makes them."""
    named: list[tuple[int | None, str, _Leaf]] = [(None, "", ("embed", "dense", None))]
    for index, kind in enumerate(config.layers):
        for part, leaves in _parts(kind):
            named += [(index, part, leaf) for leaf in leaves]
    named += [(None, "", (leaf, "dense", None)) for leaf in ("final_norm", "logits")]
    return tuple(
        Site(
            name=_name(layer, part, leaf),
            layer=layer,
            part=part,
            leaf=leaf,
            kind=kind_of,
            order=order,
            rule=rule,
        )
        for order, (layer, part, (leaf, kind_of, rule)) in enumerate(named)
    )


def _parts(kind: LayerKind) -> list[tuple[str, tuple[_Leaf, ...]]]:
    attn = _ATTN_HEAD
    attn += _ATTN_KV if kind.owns_kv else ()
    attn += _ATTN_INDEX if kind.owns_index else ()
    parts = [("attn", attn + _ATTN_TAIL), ("ffn", _FFN)]
    return [("engram", _ENGRAM), *parts] if kind.engram else parts


def _name(layer: int | None, part: str, leaf: str) -> str:
    return leaf if layer is None else f"layers.{layer}.{part}.{leaf}"


@cache
def _by_name(config: ModelConfig) -> dict[str, Site]:
    return {site.name: site for site in causal_sites(config)}


def site_of(name: str, config: ModelConfig) -> Site:
    """Give the site with a name.

    What an engine stores of a quantised site may be dumped as it is, under the site's name with
    ".codes" and ".scales": these are compared byte by byte, in the site's place. Any other name that
    the model does not have is compared as dense, last.
    """
    known = _by_name(config)
    if name in known:
        return known[name]
    base, _, suffix = name.rpartition(".")
    if base in known and suffix in STORED_PARTS:
        return replace(
            known[base], name=name, leaf=name.rsplit(".", 2)[1], kind="integer", rule=None
        )
    return Site(name=name, layer=None, part="", leaf=name, kind="dense", order=len(known))


def is_site(name: str, config: ModelConfig) -> bool:
    """Say whether the model has a site of this name."""
    return name in _by_name(config)


def inputs_of(name: str, config: ModelConfig) -> tuple[str, ...]:
    """Give the sites from which the model computes a site; () for what comes from the tokens."""
    site = site_of(name, config)
    base, _, suffix = name.rpartition(".")
    if suffix in STORED_PARTS and is_site(base, config):
        return inputs_of(base, config)
    if name == "logits":
        return ("final_norm",)
    if name == "final_norm":
        last = config.num_hidden_layers - 1
        return (f"layers.{last}.ffn.streams", f"layers.{last}.ffn.next_pre")
    if site.layer is None:
        return ()
    if site.part == "engram":
        before = (_streams_before(site.layer, config, engram=True),)
        own = f"layers.{site.layer}.engram"
        return {"rows": (), "found": (f"{own}.rows",)}.get(site.leaf, (f"{own}.found", *before))
    if site.part == "attn":
        return _attention_inputs(site, config)
    return _ffn_inputs(site)


def _streams_before(layer: int, config: ModelConfig, *, engram: bool = False) -> str:
    if config.layer(layer).engram and not engram:
        return f"layers.{layer}.engram.streams"
    return f"layers.{layer - 1}.ffn.streams" if layer else "embed"


def _attention_inputs(site: Site, config: ModelConfig) -> tuple[str, ...]:
    assert site.layer is not None, site
    layer, own = site.layer, f"layers.{site.layer}.attn"
    kind, before = config.layer(layer), _streams_before(layer, config)
    pre = (f"layers.{layer - 1}.ffn.next_pre",) if layer else ()
    keys: tuple[str, ...] = (f"{own}.q", f"{own}.window_kv")
    if kind.ratio:
        keys += (f"layers.{kind.kv_source}.attn.compressed_kv",)
        keys += (f"layers.{kind.index_source}.attn.chosen",)
    chosen: tuple[str, ...] = (f"{own}.index_scores",)
    if kind.candidates == "consumer":
        chosen += (f"layers.{config.candidate_source_layer_id}.attn.index_scores",)
    table: dict[str, tuple[str, ...]] = {
        "input": (before, *pre),
        "norm": (f"{own}.input",),
        "q_low": (f"{own}.norm",),
        "q": (f"{own}.q_low",),
        "window_kv": (f"{own}.norm",),
        "latent": (f"{own}.norm",),
        "compressed_kv": (f"{own}.latent",),
        "index_key": (f"{own}.latent",),
        "index_query": (f"{own}.q_low",),
        "index_scores": (
            f"{own}.index_query",
            f"layers.{kind.kv_source}.attn.index_key",
            f"{own}.norm",
        ),
        "chosen": chosen,
        "context": keys,
        "context_unrotated": (f"{own}.context",),
        "output": (f"{own}.context_unrotated",),
        "next_pre": (before,),
        "streams": (f"{own}.output", before),
    }
    return table[site.leaf]


def _ffn_inputs(site: Site) -> tuple[str, ...]:
    own, attn = f"layers.{site.layer}.ffn", f"layers.{site.layer}.attn"
    ids, weights, norm = f"{own}.expert_ids", f"{own}.expert_weights", f"{own}.norm"
    table: dict[str, tuple[str, ...]] = {
        "input": (f"{attn}.streams", f"{attn}.next_pre"),
        "norm": (f"{own}.input",),
        "expert_ids": (norm,),
        "expert_weights": (norm, ids),
        "routed": (norm, ids, weights),
        "shared": (norm,),
        "output": (f"{own}.routed", f"{own}.shared"),
        "next_pre": (f"{attn}.streams",),
        "streams": (f"{own}.output", f"{attn}.streams"),
    }
    return table[site.leaf]
