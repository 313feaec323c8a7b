"""Ported trees with each known fault, and the same without: the check tells them apart."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dih20.console import Console
from dih20.errors import DoctorFindings
from dih20.patches.diagnose.command import diagnose
from dih20.patches.diagnose.facts import read_tree
from dih20.patches.diagnose.hypotheses import HYPOTHESES, Finding, all_findings
from dih20.paths import REPOSITORY
from tests.patches.upstream_tree import rewrite

OPS = "deepinfer/own_ops/attention.py"
V4 = "deepinfer/model_executor/models/v4_modules"

# a port's attention, our own lines: what is between @ is what the tests change
PORT = """\
import torch


def sparse_mla_kernel(topk, is_causal=@default@):
    def main(q, kv, Indices, out):
        for s_i in range(4):
            max_kv_i = s_i
            for slot in range(topk):
                if is_causal:
                    mask = Indices[s_i, slot] @compare@
                else:
                    mask = Indices[s_i, slot] >= 0
    return main


def prefill_attn_varlen_sparse(query, kv_a_with_mqa, index_topk, softmax_scale, attn_sink=None):
    out, lse = sparse_mla_kernel(640)(query, kv_a_with_mqa, index_topk)
    weight = torch.exp2(lse) / (torch.exp2(lse) + torch.exp2(@sink@))
    return out * weight, lse


def flash_mla_with_kvcache(q, k_cache, indices, attn_sink=None, extra_k_cache=None):
    rows = @rows@
    scales = rows[:, 512:@record@]
    out, lse = sparse_mla_kernel(640, is_causal=False)(q, rows, indices)
    return out * torch.sigmoid(lse - attn_sink), lse
"""
HEALTHY = {
    "default": "False",
    "compare": ">= 0",
    "sink": "attn_sink * 1.44269504",
    "rows": "load_rows(k_cache, indices // k_cache.shape[1] * k_cache.stride(0))",
    "record": "288",
}


def port(**faults: str) -> str:
    text = PORT
    for name, value in {**HEALTHY, **faults}.items():
        text = text.replace(f"@{name}@", value)
    assert "@" not in text
    return text


def findings(root: Path) -> dict[str, Finding]:
    return {finding.hypothesis: finding for finding in all_findings(read_tree(root))}


def write(root: Path, file: str, text: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(text)


def verdicts(root: Path) -> dict[str, str]:
    return {name: finding.verdict for name, finding in findings(root).items()}


@pytest.fixture
def ported(tmp_path: Path) -> Path:
    """A tree with a port's attention and nothing of upstream."""
    write(tmp_path, OPS, port())
    return tmp_path


def test_a_healthy_port_shows_no_sign(ported: Path) -> None:
    assert "found" not in verdicts(ported).values()
    assert [verdicts(ported)[name] for name in ("H1", "H2", "H3", "H4")] == ["not found"] * 4


@pytest.mark.parametrize(
    ("hypothesis", "faults", "says"),
    [
        ("H1", {"default": "True", "compare": "<= max_kv_i"}, "is_causal is True by default"),
        ("H2", {"rows": "k_cache.view(-1, 288)[indices]"}, "takes pages for dense rows"),
        ("H2", {"rows": "k_cache.flatten(0, 1)[indices]"}, "takes pages for dense rows"),
        ("H2", {"rows": "gather(kv.reshape(-1, 288), indices)"}, "takes pages for dense rows"),
        ("H2", {"rows": "k_cache.as_strided((9, 288), (288, 1))"}, "has no page stride"),
        ("H2", {"rows": "read(k_cache, indices * 288)"}, "an address without page stride"),
        ("H3", {"record": "528"}, "none of the readers knows 288"),
        ("H4", {"sink": "attn_sink"}, "exp2 with a sink that is not times log2(e)"),
    ],
)
def test_a_fault_in_attention_is_found_with_its_line(
    ported: Path, hypothesis: str, faults: dict[str, str], says: str
) -> None:
    write(ported, OPS, port(**faults))
    found = findings(ported)
    assert [name for name, each in found.items() if each.verdict == "found"] == [hypothesis]
    evidence = "\n".join(found[hypothesis].evidence)
    assert says in evidence
    assert f"{OPS}:" in evidence


def test_a_causal_switch_that_is_off_for_everyone_is_no_fault(ported: Path) -> None:
    write(ported, OPS, port(compare="<= max_kv_i"))
    assert verdicts(ported)["H1"] == "not found"
    text = port(compare="<= max_kv_i")
    write(
        ported,
        OPS,
        text.replace("sparse_mla_kernel(640)", "sparse_mla_kernel(640, is_causal=True)"),
    )
    assert "passes is_causal=True" in "\n".join(findings(ported)["H1"].evidence)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            ", attn_sink=None):\n    out, lse = sparse",
            "):\n    out, lse = sparse",
            "takes no attn_sink",
        ),
        ("lse - attn_sink", "lse", "takes attn_sink and never uses it"),
    ],
)
def test_a_sink_that_is_left_out_is_found(ported: Path, old: str, new: str, says: str) -> None:
    text = port(sink="0.0" if "no attn_sink" in says else HEALTHY["sink"])
    assert old in text
    write(ported, OPS, text.replace(old, new))
    assert says in "\n".join(findings(ported)["H4"].evidence)


def test_packed_scales_taken_for_fp32_are_found(ported: Path) -> None:
    write(ported, "deepinfer/platform.py", "class PlatformH20:\n    fp8_sf_type = torch.float32\n")
    assert verdicts(ported)["H5"] == "found"
    write(ported, "deepinfer/platform.py", "class PlatformH20:\n    gemm_sf_type = torch.float32\n")
    assert verdicts(ported)["H5"] == "not found"


def test_faults_in_upstreams_own_symbols_are_found(copy_of: Path) -> None:
    assert "found" not in verdicts(copy_of).values()
    mlp, attn = f"{V4}/mlp.py", f"{V4}/attn.py"
    rewrite(
        copy_of,
        mlp,
        "recipe_b=(1, 32 if fp4_b else get_fp8_casting_granularity())",
        "recipe_b=(1, 128)",
    )
    rewrite(copy_of, attn, "conjugate=True)", "conjugate=False)")
    loader = "deepinfer/hugging_face/own_loader.py"
    write(
        copy_of,
        loader,
        "def load_experts(param, weight, scale):\n    param.data.copy_(weight.mT)\n    param.sf.copy_(scale)\n",
    )
    found = findings(copy_of)
    assert [name for name, each in found.items() if each.verdict == "found"] == ["H6", "H7", "H8"]
    assert f"{mlp}:" in found["H6"].evidence[0]
    assert "turns weights" in found["H7"].evidence[0]
    assert "no rotation back" in found["H8"].evidence[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def load_experts(w1, w3):\n    return torch.cat([w3, w1])\n", "puts w3 before w1"),
        ("def requant(x):\n    return scale(x.amax() / 448.0, f(x / 448.0))\n", "amax / 448"),
    ],
)
def test_a_wrong_order_or_lossy_scale_is_found(ported: Path, text: str, says: str) -> None:
    write(ported, "deepinfer/own_ops/loader.py", text)
    assert says in findings(ported)["H7"].evidence[0]


def test_a_flag_that_stays_on_without_its_kernel_is_found(copy_of: Path) -> None:
    attn = f"{V4}/attn.py"
    rewrite(
        copy_of,
        attn,
        "        if not self.use_fused_norm_rope_attn_rope_cast:\n            return None\n",
        "        if PLATFORM.is_sm90 or not self.use_fused_norm_rope_attn_rope_cast:\n            return None\n",
    )
    assert "the flag stays True" in findings(copy_of)["H8"].evidence[0]


def test_rotating_back_in_the_attention_too_is_found(copy_of: Path) -> None:
    write(
        copy_of,
        OPS,
        port().replace("return out * torch.sig", "inverse_rope(out)\n    return out * torch.sig"),
    )
    assert "rotates back too" in findings(copy_of)["H8"].evidence[0]


def test_our_own_patched_tree_shows_no_sign(patched: Path) -> None:
    assert "found" not in verdicts(patched).values()
    assert verdicts(patched)["H8"] == verdicts(patched)["H6"] == "not found"


def test_every_hypothesis_has_a_probe_and_stands_in_the_guide(ported: Path) -> None:
    guide = (REPOSITORY / "docs/why-it-printed-garbage.md").read_text()
    for name, finding in findings(ported).items():
        assert "print(" in finding.probe or "compare" in finding.probe
        assert f"{name} " in guide or f"{name}:" in guide, name
    assert list(HYPOTHESES) == [f"H{number}" for number in range(1, 9)]


def test_the_task_prints_findings_with_probes_and_exits_60(ported: Path) -> None:
    write(ported, OPS, port(default="True", compare="<= max_kv_i"))
    write(ported, "deepinfer/broken.py", "def f(:\n")
    command = [
        sys.executable,
        "-m",
        "invoke",
        "patch",
        "--diagnose",
        "--tree",
        str(ported),
        "--json",
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 60, done.stderr
    answer = json.loads(done.stdout)
    rows = {row["hypothesis"]: row for row in answer["error"]["details"]["findings"]}
    assert rows["H1"]["verdict"] == "found"
    assert "context.float().norm()" in rows["H1"]["probe"]
    assert answer["error"]["details"]["unreadable"] == ["deepinfer/broken.py"]
    assert "signs of H1" in done.stderr


def test_a_tree_without_signs_exits_0(ported: Path) -> None:
    assert diagnose(Console(), str(ported))["findings"][0]["verdict"] == "not found"
    write(ported, OPS, port(record="528"))
    with pytest.raises(DoctorFindings, match="signs of H3"):
        diagnose(Console(), str(ported))
    shutil.rmtree(ported / "deepinfer")
    assert diagnose(Console(), str(ported))["changed"] == []
