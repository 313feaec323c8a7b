"""H5 to H8: faults of scales, expert rows, weights and rotations, mostly in upstream's own symbols."""

from __future__ import annotations

import re

from dih20.patches.diagnose.attention_faults import attention_of
from dih20.patches.diagnose.facts import TreeFacts, Verdict

V4 = "deepinfer/model_executor/models/v4_modules"


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
        turned = [t for t in each.texts() if re.search(r"\.(mT|T|t\(\)|transpose\()", t)]
        scales = [t for t in turned if re.search(r"sf|scale", t)]
        if turned and not scales:
            evidence.append(
                f"{each.at(each.line)}: turns weights ({turned[0]}) and not their scales"
            )
        for call in each.calls:
            if call.function.endswith("cat") and re.search(r"w3.*w1|\bup\b.*\bgate\b", call.text):
                evidence.append(f"{each.at(call.line)}: {call.text} puts w3 before w1")
    for each in loaders:
        if any(re.search(r"/ ?448|448\.0", text) for text in each.texts()):
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
        for each in attention_of(tree)
        if each.file in tree.changed and not each.file.endswith("attn.py")
        for call in each.calls
        if call.keywords.get("conjugate") == "True" or "inverse_rope" in call.function
    ]
    evidence += elsewhere
    return ("found" if evidence else "not found"), evidence
