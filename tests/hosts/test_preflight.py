"""Fit or not: recorded answers of a host, and the findings that they must lead to. Cases are JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from dih20.doctor.registry import Finding
from dih20.errors import PreflightFailed
from dih20.hosts.facts import gather
from dih20.hosts.preflight import preflight, require_fit
from tests.hosts.places import production_host
from tests.hosts.recorded import HEALTHY, recorded_host

CASES = sorted((Path(__file__).parent / "cases" / "preflight").glob("*.json"))


def findings_of(case: dict[str, Any]) -> list[Finding]:
    host = production_host(**case.get("host", {}))
    facts = gather(recorded_host(host, case["answers"]), host, fabric_wait_s=0)
    return preflight(facts, host)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_host_gets_exactly_the_findings_of_its_case(path: Path) -> None:
    case = json.loads(path.read_text())
    findings = findings_of(case)
    failed = [finding for finding in findings if finding.status == "fail"]
    for text, remedy in case["fails"]:
        match = [finding for finding in failed if text in finding.found]
        assert match, f"no failed finding says {text!r}: {[f.found for f in failed]}"
        assert remedy in match[0].remedy
    wanted = {text for text, _ in case["fails"]}
    extra = [f.found for f in failed if not any(text in f.found for text in wanted)]
    assert not extra
    for text in case.get("warns", []):
        assert any(f.status == "warn" and text in f.found for f in findings)


def test_there_is_a_case_for_each_of_the_five_ways_to_have_unfit_gpus() -> None:
    stems = {path.stem for path in CASES}
    ways = {"runtime-missing", "busy", "row-remap-pending", "mig-on", "seven-of-eight"}
    assert {f"gpu-{way}" for way in ways} <= stems


def test_all_that_is_wrong_is_said_at_once_with_what_to_run() -> None:
    answers = {
        "processes": "GPU-3, 41234, python3, 61440\n",
        "fabric": "active\nversion 580.65.06\n",
    }
    with pytest.raises(PreflightFailed) as failed:
        require_fit(findings_of({"answers": answers}), "nv-h20")
    assert "GPU 3 is busy" in failed.value.found
    assert "580.65.06" in failed.value.found
    assert "ask whose process" in failed.value.remedy


def test_every_finding_that_is_not_ok_says_what_to_run() -> None:
    for path in CASES:
        for finding in findings_of(json.loads(path.read_text())):
            if finding.status in ("fail", "warn"):
                assert finding.expected and finding.remedy, f"{path.stem}: {finding}"


def test_a_joining_fabric_is_waited_for_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    host = production_host()
    runner = recorded_host(host, {"gpus": HEALTHY["gpus"].replace("Completed", "In Progress")})
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            healthy = recorded_host(host, {})
            runner.answers.update(healthy.answers)

    monkeypatch.setattr(time, "sleep", pause)
    facts = gather(runner, host, fabric_wait_s=60)
    assert len(pauses) == 3
    assert {gpu.fabric_state for gpu in facts.gpus.gpus} == {"Completed"}


def test_a_failed_fabric_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    host = production_host()
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waited for a failed fabric"))
    gather(recorded_host(host, {"gpus": HEALTHY["gpus"].replace("Success", "Failed")}), host)


def test_facts_of_gpus_are_not_asked_of_a_host_without_any() -> None:
    host = production_host(gpus=0)
    runner = recorded_host(host, {})
    gather(runner, host)
    assert not [argv for argv in runner.calls if argv[0] == "nvidia-smi"]


def test_an_engine_before_23_does_not_read_zstd() -> None:
    from dih20.hosts.facts import Engine

    assert not Engine(version="20.10.24+dfsg1").reads_zstd
    assert Engine(version="23.0.0").reads_zstd
    assert not Engine().reads_zstd
