"""Rows of tables about findings."""

from __future__ import annotations

from dih20.parity.compare.replay import Replayed
from dih20.parity.dump import DumpReader
from dih20.parity.model import Comparison, Finding

_BEFORE, _AFTER = 2, 8


def rows_around_first(comparison: Comparison) -> list[list[str]]:
    """Give the findings around the first divergence, or the largest differences where there is none."""
    findings = list(comparison.findings)
    first = comparison.verdict.first
    if first is not None:
        at = findings.index(first) if first in findings else 0
        shown = findings[max(at - _BEFORE, 0) : at + _AFTER]
    else:
        apart = [finding for finding in findings if finding.measure.value]
        shown = sorted(apart, key=lambda finding: -finding.measure.value)[:4]
    return [_row(finding) for finding in shown]


def _row(finding: Finding) -> list[str]:
    measure = finding.measure
    value = f"{'~' if measure.estimated else ''}{measure.value:.2e}"
    origin = finding.origin if finding.diverges or finding.origin == "fresh" else "agrees"
    return [
        finding.site,
        finding.layer_kind,
        finding.phase,
        str(finding.step),
        value,
        f"{measure.limit:.0e}",
        origin,
        finding.remark,
    ]


def replay_rows(replayed: Replayed, dump: DumpReader, site: str) -> list[list[str]]:
    """Give the replayed sites of one name, or those that add an error of their own."""
    rows = []
    for step, name in dump.keys:
        if (step, name) not in replayed or (site and name != site):
            continue
        measure, remark = replayed[step, name]
        if site or measure.exceeds:
            value, limit = f"{measure.value:.2e}", f"{measure.limit:.0e}"
            rows.append([name, str(step), value, limit, "yes" if measure.exceeds else "no", remark])
    return rows
