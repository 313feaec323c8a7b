"""Run the checks for a place and show them; exit non-zero when one fails."""

from __future__ import annotations

from typing import Any

from dih20.console import Console
from dih20.doctor.registry import Finding, Subject, discover, run_checks
from dih20.errors import DoctorFindings
from dih20.hosts.runner import LocalRunner

_SIGN = {"ok": "✓", "warn": "!", "fail": "✗", "not applicable": "-", "not run": "-"}


def examine(host: str, accept_host_key: str = "") -> list[tuple[str, Finding]]:
    """Run all checks here, or all checks on a host over one SSH connection."""
    discover()
    if not host:
        return list(run_checks(Subject(runner=LocalRunner()), "local"))
    from dih20.config import load_host
    from dih20.hosts.ssh import connect

    config = load_host(host)
    with connect(config, accept_host_key=accept_host_key) as connection:
        return list(run_checks(Subject(runner=connection, host=config), "host"))


def show(ui: Console, findings: list[tuple[str, Finding]]) -> dict[str, Any]:
    """Print a line per finding with its remedy; raise DoctorFindings when one failed."""
    for name, finding in findings:
        status = "" if finding.status in ("ok", "fail") else f"{finding.status}: "
        ui.line(f"{_SIGN[finding.status]} {name}: {status}{finding.found}")
        if finding.remedy:
            ui.line(f"    expected: {finding.expected}")
            ui.line(f"    next:     {finding.remedy}")
    report = {"findings": [{"check": name, **vars(finding)} for name, finding in findings]}
    failed = [name for name, finding in findings if finding.status == "fail"]
    if failed:
        raise DoctorFindings(
            found=f"{len(failed)} of {len(findings)} findings failed: {', '.join(dict.fromkeys(failed))}",
            expected="no failed finding",
            remedy="run what stands under each failed line, then `./inv doctor` again",
            details=report,
        )
    return report
