"""The eight faults: what each is, what looks for it, and the one-line probe that decides it at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dih20.patches.diagnose.attention_faults import causal_prefill, dense_pages, sink, wrong_record
from dih20.patches.diagnose.facts import TreeFacts, Verdict
from dih20.patches.diagnose.layout_faults import (
    packed_scales,
    plain_moe,
    rotation_back,
    weight_layout,
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check saw: verdict, where, and one line to run in the engine that decides it."""

    hypothesis: str
    title: str
    verdict: Verdict
    evidence: tuple[str, ...]
    probe: str


Check = Callable[[TreeFacts], tuple[Verdict, list[str]]]


def all_findings(tree: TreeFacts) -> Iterator[Finding]:
    """Give a finding for each hypothesis, in their order."""
    for name, (title, check, probe) in HYPOTHESES.items():
        verdict, evidence = check(tree)
        yield Finding(
            hypothesis=name, title=title, verdict=verdict, evidence=tuple(evidence[:6]), probe=probe
        )


HYPOTHESES: dict[str, tuple[str, Check, str]] = {
    "H1": (
        "prefill attention keeps only entries below the query's row, which masks every key of a fresh prompt",
        causal_prefill,
        (
            "in V4Attention.forward after _prefill_attention, layer 0: "
            "print(context.float().norm())  # exactly 0 means that every key was masked"
        ),
    ),
    "H2": (
        "decode takes cache pages for dense, though one block holds all layers",
        dense_pages,
        (
            "in the decode reader: print(k_cache.shape, k_cache.stride())  # stride(0) must be used: it is not "
            "page_size * record; compare a row of page 1 with load_paged_kv_cache"
        ),
    ),
    "H3": (
        "decode reads 528-byte records from a compressed cache of 288-byte ones",
        wrong_record,
        "in the decode reader: print(extra_k_cache.shape[-1])  # 288 is FP4 with linear e4m3 scales, 528 is FP8",
    ),
    "H4": (
        "the attention sink is missing, or added in another base of logarithm",
        sink,
        (
            "call the attention with attn_sink=torch.full_like(attn_sink, 60.0): "
            "print(out.abs().max())  # 0 when the sink takes part"
        ),
    ),
    "H5": (
        "packed scales are read as fp32 numbers of the same shape",
        packed_scales,
        "in Engram.forward: x = embed_hook(); print(x[1].dtype, x[1].abs().max())  # 1e33 means packed bytes",
    ),
    "H6": (
        "expert rows, their alignment and the grouped GEMM's scales do not agree",
        plain_moe,
        (
            "in DeepseekMoE.forward, layer 0, 1, 7 and 130 tokens: compare the output with one matmul per expert "
            "on dequantised weights"
        ),
    ),
    "H7": (
        "expert weights and their scales lie in different orders",
        weight_layout,
        "after loading: dequantise experts.linear1.weight[0] with its sf and compare with the checkpoint's w1 over w3",
    ),
    "H8": (
        "the rotation back is left out or done twice",
        rotation_back,
        "in _wv_and_o_proj: print(context[0, 0, -64:]) before and after the rotation  # it must change once",
    ),
}
