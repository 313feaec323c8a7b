"""H1 to H4: faults of the attention that serves prefill and decode in a ported tree."""

from __future__ import annotations

import re

from dih20.patches.diagnose.facts import Function, TreeFacts, Verdict

_INDEX = re.compile(r"\b\w*(ind(ex|ices)|idx|Indices)\w*", re.I)
_QUERY_ROW = re.compile(
    r"\b(q_?(pos|i|row|idx|start)\w*|max_kv_i|s_i|seq_q\w*|query_(row|pos)\w*)\b"
)
_CACHE = re.compile(r"\b\w*cache\w*", re.I)
_RECORDS = {288, 528, 576, 584, 656}
_RECORD_ROWS = rf"\(\s*-1\s*,\s*({'|'.join(map(str, sorted(_RECORDS)))})\b"
_ATTENTION = (
    "flash_mla_sparse_fwd",
    "flash_mla_with_kvcache",
    "prefill_attn_varlen_sparse",
    "decode_mla_mqa_sparse",
)


def attention_of(tree: TreeFacts) -> list[Function]:
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
    attention = attention_of(tree)
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
    readers = attention_of(tree)
    for each in readers:
        for call in each.calls:
            name = call.function.rsplit(".", 1)[-1]
            receiver = call.function.rsplit(".", 1)[0]
            merges = name == "flatten" or re.search(r"\(\s*-1\s*,", call.text)
            is_cache = _CACHE.search(receiver) or re.search(_RECORD_ROWS, call.text)
            if name in ("view", "reshape", "flatten") and is_cache and merges:
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
    readers = [each for each in attention_of(tree) if each.file in tree.changed]
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
        used = any("sink" in text for text in each.texts())
        if "attn_sink" not in each.defaults:
            evidence.append(f"{each.at(each.line)}: takes no attn_sink")
        elif not used:
            evidence.append(f"{each.at(each.line)}: takes attn_sink and never uses it")
    for each in attention_of(tree):
        called = {call.function.rsplit(".", 1)[-1] for call in each.calls}
        constants = " ".join(text for text in each.texts())
        has_sink = any("sink" in name.lower() for name in each.names)
        if has_sink and "exp2" in called and not re.search(r"1\.44|log2|LOG2", constants):
            evidence.append(f"{each.at(each.line)}: exp2 with a sink that is not times log2(e)")
    if evidence:
        return "found", list(dict.fromkeys(evidence))
    return ("not found" if entries else "not in this tree"), []


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
