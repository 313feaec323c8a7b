"""`inv patch --diagnose --tree DIR`: print what each check found, and the probe that decides it."""

from __future__ import annotations

from typing import Any

from dih20.console import Console
from dih20.errors import DoctorFindings
from dih20.patches.diagnose.facts import read_tree
from dih20.patches.diagnose.hypotheses import Finding, all_findings
from dih20.patches.in_place import user_tree


def diagnose(ui: Console, tree: str) -> dict[str, Any]:
    """Look for the known faults; exit code 60 when the tree shows one."""
    facts = read_tree(user_tree(tree))
    ui.line(f"{len(facts.changed)} Python files differ from the locked release")
    for path in facts.unreadable:
        ui.warn(f"{path} cannot be parsed and was not looked at")
    findings = list(all_findings(facts))
    for finding in findings:
        ui.line(f"{finding.hypothesis}  {finding.verdict}: {finding.title}")
        for line in finding.evidence:
            ui.line(f"      {line}")
        ui.line(f"      probe: {finding.probe}")
    result = {
        "changed": facts.changed,
        "unreadable": facts.unreadable,
        "findings": [_as_dict(finding) for finding in findings],
    }
    found = [finding for finding in findings if finding.verdict == "found"]
    if found:
        raise DoctorFindings(
            found=f"signs of {', '.join(f.hypothesis for f in found)} in {tree}",
            expected="none of the faults in docs/why-it-printed-garbage.md",
            remedy=f"run the probe of {found[0].hypothesis} in the engine: reading alone proves nothing",
            details=result,
        )
    return result


def _as_dict(finding: Finding) -> dict[str, Any]:
    return {**vars(finding), "evidence": list(finding.evidence)}
