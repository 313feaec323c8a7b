"""`inv parity report`: one self-contained HTML page with the pictures of a comparison."""

from __future__ import annotations

from collections import defaultdict
from html import escape
from pathlib import Path

import torch

from dih20.parity.dump import DumpReader
from dih20.parity.model import Comparison, Finding
from dih20.parity.sites import inputs_of, site_of
from dih20.parity.svg import Line, depth_plot, histogram
from dih20.parity.table import rows_around_first

_BINS = 40
_GROUPS = {
    "residual streams": ("engram.streams", "attn.streams", "ffn.streams"),
    "attention": ("attn.norm", "attn.q", "attn.context", "attn.output"),
    "cache entries": ("attn.window_kv", "attn.compressed_kv", "attn.index_key"),
    "selection": ("attn.index_query", "attn.index_scores", "attn.chosen"),
    "feed forward": ("ffn.norm", "ffn.expert_weights", "ffn.routed", "ffn.shared", "ffn.output"),
    "stream mixes": ("attn.next_pre", "ffn.next_pre"),
}
_STYLE = (
    "body{font:14px sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse}"
    "td,th{border:1px solid #ccc;padding:2px 6px;text-align:left}.bad{color:#b00}.good{color:#070}"
)


def write_report(path: Path, comparison: Comparison, a: Path, b: Path) -> Path:
    """Write the page; it loads nothing from anywhere."""
    verdict = comparison.verdict
    parts = [
        f'<h1 class="{"good" if verdict.outcome == "ok" else "bad"}">{escape(verdict.line)}</h1>',
        _facts(comparison),
        _causes(comparison),
        *_depth_section(comparison, "prefill"),
        *_depth_section(comparison, "decode"),
        "<h2>Around the first divergence</h2>" if verdict.first else "<h2>Largest differences</h2>",
        _table(comparison),
    ]
    if verdict.first is not None:
        parts += _histograms(verdict.first, DumpReader(a), DumpReader(b))
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>parity</title>'
        f"<style>{_STYLE}</style>{''.join(parts)}</html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def _facts(comparison: Comparison) -> str:
    rows = []
    for name, facts in (("A", comparison.a), ("B", comparison.b)):
        rows.append((name, " / ".join(facts.arithmetic)))
    cover = comparison.coverage
    floor = "measured" if comparison.floor_measured else "not measured"
    rows += [("data", cover.data_class), ("noise floor", floor)]
    rows.append(("covered", ", ".join(cover.covered)))
    rows.append(("NOT covered", ", ".join(cover.missing) or "nothing"))
    rows.append(("in one dump only", ", ".join(cover.not_compared) or "nothing"))
    cells = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in rows)
    return f"<table>{cells}</table>"


def _causes(comparison: Comparison) -> str:
    if comparison.verdict.first is None:
        return ""
    causes = comparison.verdict.looks_like
    if not causes:
        return "<p>no known signature</p>"
    items = "".join(
        f"<li><b>{escape(c.title)}</b> ({c.confidence:.0%}): {escape(c.because)}</li>"
        for c in causes
    )
    return f"<p>Looks like</p><ol>{items}</ol>"


def _depth_section(comparison: Comparison, phase: str) -> list[str]:
    """Draw the worst step of a phase at each layer, per group of sites, with the noise floor."""
    findings = [f for f in comparison.findings if f.phase == phase and f.layer is not None]
    if not findings:
        return []
    first = comparison.verdict.first
    mark = None
    if first is not None and first.phase == phase and first.layer is not None:
        mark = (float(first.layer), first.site)
    parts = [f"<h2>Difference against depth, {phase}</h2>"]
    for title, leaves in _GROUPS.items():
        lines = [_line(leaf, findings) for leaf in leaves]
        lines = [line for line in lines if line.points]
        if not lines:
            continue
        floors = _worst(findings, leaves, "floor")
        if floors:
            lines.append(Line(name="noise floor", points=floors, dashed=True, colour="#000"))
        limits = _worst(findings, leaves, "limit")
        lines.append(Line(name="limit", points=limits, dashed=True, colour="#999"))
        parts.append(depth_plot(title, lines, mark=mark))
    return parts


def _line(leaf: str, findings: list[Finding]) -> Line:
    return Line(name=leaf, points=_worst(findings, (leaf,), "value"))


def _worst(
    findings: list[Finding], leaves: tuple[str, ...], what: str
) -> list[tuple[float, float]]:
    worst: dict[int, float] = defaultdict(float)
    for finding in findings:
        if finding.layer is None or not finding.site.endswith(leaves):
            continue
        value = getattr(finding.measure, what)
        if value is not None:
            value = value if value == value else float("inf")
            worst[finding.layer] = max(worst[finding.layer], value)
    return [(float(layer), value) for layer, value in sorted(worst.items())]


def _table(comparison: Comparison) -> str:
    head = ("site", "kind", "phase", "step", "measure", "limit", "origin", "remark")
    rows = [head, *rows_around_first(comparison)]
    return (
        "<table>"
        + "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
        )
        + "</table>"
    )


def _histograms(first: Finding, a: DumpReader, b: DumpReader) -> list[str]:
    """Draw A, B and their difference for the first wrong site and for what it is made of."""
    parts = ["<h2>Values in the bracket</h2>"]
    for site in (*inputs_of(first.site, a.config), first.site):
        if not (a.is_stored(first.step, site) and b.is_stored(first.step, site)):
            continue
        if site_of(site, a.config).kind in ("selection", "expert_ids", "integer"):
            continue
        left, right = (dump.tensor(first.step, site).float().flatten() for dump in (a, b))
        parts.append(f"<h3>{escape(site)}, step {first.step}</h3>")
        for name, values in (("A", left), ("B", right), ("B - A", right - left)):
            parts.append(_histogram(name, values))
    return parts


def _histogram(name: str, values: torch.Tensor) -> str:
    finite = values[values.isfinite()]
    if not finite.numel():
        return histogram(f"{name}: nothing finite", [0], 0.0, 0.0)
    low, high = float(finite.min()), float(finite.max())
    counts = (
        torch.histc(finite, bins=_BINS, min=low, max=high)
        if high > low
        else finite.new_tensor([finite.numel()])
    )
    return histogram(f"{name}: {finite.numel()} values", [int(c) for c in counts], low, high)
