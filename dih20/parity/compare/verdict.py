"""Put a comparison into one line."""

from __future__ import annotations

from dih20.parity.model import Cause, Coverage, Finding, Measure, Verdict


def first_fresh(findings: list[Finding]) -> Finding | None:
    """Give the first finding, in causal order, whose site adds an error of its own."""
    return next((finding for finding in findings if finding.origin == "fresh"), None)


def verdict_of(
    findings: list[Finding], coverage: Coverage, causes: tuple[Cause, ...], *, replayed: bool
) -> Verdict:
    """Give the outcome. It is never "ok" while a layer kind, a phase or a case is missing."""
    first = first_fresh(findings)
    differing = [finding for finding in findings if finding.diverges]
    if first is not None or (differing and not replayed):
        accused = first or differing[0]
        return Verdict(
            outcome="diverged", line=accusation(accused, causes), first=accused, looks_like=causes
        )
    drift = ""
    if differing:
        worst = max(differing, key=lambda finding: finding.measure.value)
        drift = (
            f"; {len(differing)} tensors drift apart (most: {worst.site}, step {worst.step}, "
            f"{worst.measure.value:.1e}{_logits(differing)}), each computed as the reference does "
            "from its inputs"
        )
    data = f"{coverage.data_class} data"
    if coverage.missing:
        line = f"no divergence in {len(findings)} tensors ({data}), parity NOT shown: not covered: "
        return Verdict(outcome="incomplete", line=line + ", ".join(coverage.missing) + drift)
    line = f"parity OK ({data}): {len(findings)} tensors, {len(coverage.covered)} kinds and cases"
    return Verdict(outcome="ok", line=line + drift)


def _logits(differing: list[Finding]) -> str:
    apart = [finding.measure.value for finding in differing if finding.site == "logits"]
    return f"; logits {max(apart):.1e}" if apart else ""


def accusation(finding: Finding, causes: tuple[Cause, ...]) -> str:
    """Say in one line where a run diverges, by how much, and what it looks like."""
    kind = f"{finding.layer_kind}, " if finding.layer_kind else ""
    measure = finding.fresh or finding.measure
    looks = f"looks like {causes[0].title}" if causes else "no known signature"
    return (
        f"DIVERGED first at {finding.site} ({kind}{finding.phase}, step {finding.step}): "
        f"{finding.origin} error {_number(measure)}; {looks}"
    )


def _number(measure: Measure) -> str:
    at = f" at {measure.coordinate}" if measure.coordinate else ""
    values = "" if measure.a is None else f" (A {measure.a:.6g}, B {measure.b:.6g})"
    floor = "" if measure.floor is None else f", noise floor {measure.floor:.1e}"
    estimated = "about " if measure.estimated else ""
    return f"{estimated}{measure.value:.3g} over the limit {measure.limit:.1e}{floor}{at}{values}"
