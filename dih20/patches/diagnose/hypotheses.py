"""The eight faults, one function each: what in the tree speaks for it, and the probe that decides it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from dih20.patches.diagnose.facts import Function, TreeFacts

Verdict = Literal["found", "not found", "not in this tree"]

V4 = "deepinfer/model_executor/models/v4_modules"
_INDEX = re.compile(r"\b\w*(ind(ex|ices)|idx|Indices)\w*", re.I)
_QUERY_ROW = re.compile(
    r"\b(q_?(pos|i|row|idx|start)\w*|max_kv_i|s_i|seq_q\w*|query_(row|pos)\w*)\b"
)
_CACHE = re.compile(r"\b\w*cache\w*", re.I)
_RECORDS = {288, 528, 576, 584, 656}
_ATTENTION = (
    "flash_mla_sparse_fwd",
    "flash_mla_with_kvcache",
    "prefill_attn_varlen_sparse",
    "decode_mla_mqa_sparse",
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


def _attention(tree: TreeFacts) -> list[Function]:
    """Give what serves attention in the tree: entries by name, and kernels in changed files beside them."""
    entries = [
        each
        for name in _ATTENTION
        for each in tree.named(name)
        if not each.file.endswith("layers/attention_backend.py") or each.file in tree.changed
    ]
    own = {each.file for each in entries}
    kernels = [
        each
        for each in tree.functions
        if each.file in own or re.search(r"sparse_?mla|mla_sparse", f"{each.file} {each.name}")
    ]
    return list({id(each): each for each in (*entries, *kernels)}.values())


def causal_prefill(tree: TreeFacts) -> tuple[Verdict, list[str]]:
    attention = _attention(tree)
    masked = [
        f"{each.at(line)}: keeps an entry when {left} {operator} {right}"
        for each in attention
        for line, left, operator, right in each.comparisons
        if (operator in ("<=", "<") and _INDEX.search(left) and _QUERY_ROW.search(right))
        or (operator in (">=", ">") and _INDEX.search(right) and _QUERY_ROW.search(left))
    ]
    aliases = [
        f"{each.at(line)}: {target} = {value}, and entries are compared with {target}"
        for each in attention
        for line, target, value in each.assignments
        if _QUERY_ROW.search(value)
        and any(_INDEX.search(a) and b == target for _, a, _, b in each.comparisons)
    ]
    if not masked and not aliases:
        return ("not found" if attention else "not in this tree"), []
    switches = [
        f"{each.at(each.line)}: {name} is {default} by default"
        for each in attention
        for name, default in each.defaults.items()
        if "causal" in name and default
    ]
    off = [text for text in switches if text.endswith("False by default")]
    passed_on = [
        f"{each.at(call.line)}: passes {name}=True"
        for each in attention
        for call in each.calls
        for name, value in call.keywords.items()
        if "causal" in name and value == "True"
    ]
    guarded = bool(off) and len(off) == len(switches) and not passed_on
    lines = [*dict.fromkeys([*masked, *aliases]), *switches, *passed_on]
    return ("not found" if guarded else "found"), lines


def dense_pages(tree: TreeFacts) -> tuple[Verdict, list[str]]:
    evidence = []
    readers = _attention(tree)
    for each in readers:
        for call in each.calls:
            name = call.function.rsplit(".", 1)[-1]
            receiver = call.function.rsplit(".", 1)[0]
            merges = name == "flatten" or re.search(r"\(\s*-1\s*,", call.text)
            if name in ("view", "reshape", "flatten") and _CACHE.search(receiver) and merges:
                evidence.append(f"{each.at(call.line)}: {call.text} takes pages for dense rows")
            if name == "as_strided" and _CACHE.search(call.text) and "stride(0)" not in call.text:
                evidence.append(f"{each.at(call.line)}: {call.text} has no page stride")
        uses_stride = any(".stride(" in call.text for call in each.calls)
        for line, left, right in each.products:
            width = _number(left) or _number(right)
            other = right if _number(left) else left
            if width in _RECORDS and _INDEX.search(other) and not uses_stride:
                evidence.append(
                    f"{each.at(line)}: {left} * {right} is an address without page stride"
                )
    if evidence:
        return "found", list(dict.fromkeys(evidence))
    return ("not found" if readers else "not in this tree"), []


def wrong_record(tree: TreeFacts) -> tuple[Verdict, list[str]]:
    readers = [each for each in _attention(tree) if each.file in tree.changed]
    old = [each for each in readers if 528 in each.numbers]
    new = [each for each in readers if 288 in each.numbers]
    if old and not new:
        return "found", [
            f"{each.at(each.line)}: knows records of 528 bytes; none of the readers knows 288"
            for each in old
        ]
    if not readers:
        return "not in this tree", []
    return "not found", [f"{each.at(each.line)}: knows records of 288 bytes" for each in new]


def sink(tree: TreeFacts) -> tuple[Verdict, list[str]]:
    entries = [each for name in _ATTENTION[:2] for each in tree.named(name)]
    entries += [
        each
        for name in _ATTENTION[2:]
        for each in tree.named(name)
        if not each.file.endswith("layers/attention_backend.py")
    ]
    evidence = []
    for each in entries:
        used = any("sink" in text for text in _texts(each))
        if "attn_sink" not in each.defaults:
            evidence.append(f"{each.at(each.line)}: takes no attn_sink")
        elif not used:
            evidence.append(f"{each.at(each.line)}: takes attn_sink and never uses it")
    for each in _attention(tree):
        called = {call.function.rsplit(".", 1)[-1] for call in each.calls}
        constants = " ".join(text for text in _texts(each))
        has_sink = any("sink" in name.lower() for name in each.names)
        if has_sink and "exp2" in called and not re.search(r"1\.44|log2|LOG2", constants):
            evidence.append(f"{each.at(each.line)}: exp2 with a sink that is not times log2(e)")
    if evidence:
        return "found", list(dict.fromkeys(evidence))
    return ("not found" if entries else "not in this tree"), []


def packed_scales(tree: TreeFacts) -> tuple[Verdict, list[str]]:
    evidence = [
        f"{each.at(line)}: {target} = {value}"
        for each in tree.functions
        for line, target, value in each.assignments
        if target.rsplit(".", 1)[-1] == "fp8_sf_type" and "float32" in value
    ]
    if evidence:
        evidence.append(
            f"{V4}/engram.py: _pack_ue8m0_to_int views packed bytes as that type, and so do index and cache loads"
        )
        return "found", evidence
    return "not found", []


def plain_moe(tree: TreeFacts) -> tuple[Verdict, list[str]]:
    gemm = tree.of(f"{V4}/mlp.py", "_grouped_gemm")
    dispatch = tree.of(f"{V4}/mlp.py", "DeepseekMoE.dispatch")
    if gemm is None or dispatch is None:
        return "not in this tree", [f"{V4}/mlp.py has no _grouped_gemm or DeepseekMoE.dispatch"]
    evidence = []
    changed = gemm.file in tree.changed
    for call in gemm.calls:
        recipe = call.keywords.get("recipe_b", "")
        if changed and re.match(r"\(\s*1\s*,", recipe) and "is_sm90" not in " ".join(gemm.names):
            evidence.append(
                f"{gemm.at(call.line)}: recipe_b={recipe}: scales of (experts, rows, columns / 128) would pass "
                "the check and be misread, the SM90 kernel takes (128, 128) whatever is said"
            )
    alignments = [c.keywords.get("expert_alignment") for c in dispatch.calls if c.keywords]
    fixed = [a for a in alignments if a is not None and "mk_alignment" not in a]
    if fixed:
        evidence.append(
            f"{dispatch.at(dispatch.line)}: expert_alignment={fixed[0]}, not what DeepGEMM was set to"
        )
    return ("found" if evidence else "not found"), evidence


def weight_layout(tree: TreeFacts) -> tuple[Verdict, list[str]]:
    loaders = [each for each in tree.functions if re.search(r"load_expert|requant", each.name)]
    evidence = []
    for each in loaders:
        turned = [t for t in _texts(each) if re.search(r"\.(mT|T|t\(\)|transpose\()", t)]
        scales = [t for t in turned if re.search(r"sf|scale", t)]
        if turned and not scales:
            evidence.append(
                f"{each.at(each.line)}: turns weights ({turned[0]}) and not their scales"
            )
        for call in each.calls:
            if call.function.endswith("cat") and re.search(r"w3.*w1|\bup\b.*\bgate\b", call.text):
                evidence.append(f"{each.at(call.line)}: {call.text} puts w3 before w1")
    for each in loaders:
        if any(re.search(r"/ ?448|448\.0", text) for text in _texts(each)):
            evidence.append(
                f"{each.at(each.line)}: scales of amax / 448 are no powers of two: lossy"
            )
    if evidence:
        return "found", list(dict.fromkeys(evidence))
    return ("not found" if loaders else "not in this tree"), []


def rotation_back(tree: TreeFacts) -> tuple[Verdict, list[str]]:
    file = f"{V4}/attn.py"
    init = tree.of(file, "V4AttentionBase.__init__")
    project = tree.of(file, "V4AttentionBase._wv_and_o_proj")
    if init is None or project is None:
        return "not in this tree", [f"{file} has no V4AttentionBase._wv_and_o_proj"]
    evidence = []
    flags = [
        (line, value)
        for line, target, value in init.assignments
        if target == "self.use_fused_norm_rope_attn_rope_cast"
    ]
    kwargs = tree.of(file, "V4AttentionBase._fused_norm_rope_cast_kwargs")
    hopper = re.compile(r"sm90|sm_major|SM90|is_hopper|^False$", re.I)
    cut = kwargs is not None and any(hopper.search(name) for name in kwargs.names)
    if cut and flags and not any(hopper.search(value) for _, value in flags):
        evidence.append(
            f"{init.at(flags[0][0])}: the flag stays True while _fused_norm_rope_cast_kwargs gives None: "
            "neither the rotation of queries nor the one back is done"
        )
    back = [c for c in project.calls if c.keywords.get("conjugate") == "True"]
    if not back:
        evidence.append(f"{project.at(project.line)}: no rotation back (conjugate=True)")
    elsewhere = [
        f"{each.at(call.line)}: rotates back too: {call.text}"
        for each in _attention(tree)
        if each.file in tree.changed and not each.file.endswith("attn.py")
        for call in each.calls
        if call.keywords.get("conjugate") == "True" or "inverse_rope" in call.function
    ]
    evidence += elsewhere
    return ("found" if evidence else "not found"), evidence


def _texts(function: Function) -> Iterator[str]:
    yield from (call.text for call in function.calls)
    yield from (f"{target} = {value}" for _, target, value in function.assignments)
    yield from (f"{left} * {right}" for _, left, right in function.products)


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


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
