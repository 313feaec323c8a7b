"""The registry of checks behind `inv doctor`, and how findings are shown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dih20.console import Console
from dih20.doctor import registry
from dih20.doctor.registry import Finding, Subject, check, run_checks
from dih20.doctor.report import show
from dih20.errors import DoctorFindings, EngineError
from dih20.hosts.fake import FakeRunner
from dih20.paths import REPOSITORY

SUBJECT = Subject(runner=FakeRunner())


@pytest.fixture
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_CHECKS", {})


@pytest.mark.usefixtures("empty_registry")
def test_checks_run_by_name_and_only_for_their_place() -> None:
    @check("zebra", where="local")
    def zebra(subject: Subject) -> Iterator[Finding]:
        yield Finding.ok("striped")

    @check("ant", where="local")
    def ant(subject: Subject) -> Iterator[Finding]:
        yield Finding.not_run("no GPU")

    @check("cat", where="host")
    def cat(subject: Subject) -> Iterator[Finding]:
        yield Finding.ok(f"on {subject.runner.name}")

    assert [name for name, _ in run_checks(SUBJECT, "local")] == ["ant", "zebra"]
    assert list(run_checks(SUBJECT, "host")) == [("cat", Finding.ok("on fake host"))]


@pytest.mark.usefixtures("empty_registry")
def test_two_checks_of_one_name_are_a_programmers_mistake() -> None:
    @check("disk", where="local")
    def first(subject: Subject) -> Iterator[Finding]:
        yield Finding.ok("")

    with pytest.raises(AssertionError, match="two checks are named 'disk'"):

        @check("disk", where="local")
        def second(subject: Subject) -> Iterator[Finding]:
            yield Finding.ok("")


@pytest.mark.usefixtures("empty_registry")
def test_two_modules_may_not_share_a_check_either() -> None:
    def disk(subject: Subject) -> Iterator[Finding]:
        yield Finding.ok("")

    def other(subject: Subject) -> Iterator[Finding]:
        yield Finding.ok("")

    other.__module__, other.__qualname__ = "dih20.elsewhere.checks", disk.__qualname__
    check("disk", where="local")(disk)
    with pytest.raises(AssertionError, match="two checks are named 'disk'"):
        check("disk", where="local")(other)


@pytest.mark.usefixtures("empty_registry")
def test_an_error_inside_a_check_is_a_finding_and_the_next_check_runs() -> None:
    @check("a engine", where="local")
    def engine(subject: Subject) -> Iterator[Finding]:
        yield Finding.ok("client 28")
        raise EngineError(found="no socket", expected="an engine", remedy="start it")

    @check("b disk", where="local")
    def disk(subject: Subject) -> Iterator[Finding]:
        yield Finding.ok("40 GB free")

    findings = list(run_checks(SUBJECT, "local"))
    assert [(name, finding.status) for name, finding in findings] == [
        ("a engine", "ok"),
        ("a engine", "fail"),
        ("b disk", "ok"),
    ]
    assert findings[1][1].remedy == "start it"


def test_a_failed_finding_ends_the_task_after_all_were_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    findings = [
        ("disk", Finding.fail("1 GB free", expected="40 GB", remedy="make room")),
        ("gpu", Finding.not_run("no GPU")),
        ("python", Finding.warn("3.11", expected="3.12", remedy="update")),
    ]
    with pytest.raises(DoctorFindings, match="1 of 3 findings failed: disk"):
        show(Console(), findings)
    out = capsys.readouterr().out
    assert "✗ disk: 1 GB free\n    expected: 40 GB\n    next:     make room\n" in out
    assert "- gpu: not run: no GPU" in out
    assert "! python: warn: 3.11" in out


def test_warnings_and_what_was_not_run_do_not_fail(ui: Console) -> None:
    shown = show(ui, [("gpu", Finding.not_run("no GPU"))])
    assert shown == {
        "findings": [
            {"check": "gpu", "status": "not run", "found": "no GPU", "expected": "", "remedy": ""}
        ]
    }


def test_every_package_with_checks_is_discovered() -> None:
    registry.discover()
    functions = [entry.function.__module__ for entry in registry._CHECKS.values()]
    for path in (REPOSITORY / "dih20").glob("*/checks.py"):
        assert f"dih20.{path.parent.name}.checks" in functions, f"{path} registers no check"


def test_json_keeps_the_findings_when_one_of_them_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import json

    ui = Console(as_json=True)
    findings = [
        ("disk", Finding.ok("plenty")),
        ("engine", Finding.fail("none", expected="one", remedy="start it")),
    ]
    with pytest.raises(DoctorFindings) as raised:
        show(ui, findings)
    ui.finish("doctor", None, raised.value)
    error = json.loads(capsys.readouterr().out)["error"]
    assert [f["status"] for f in error["details"]["findings"]] == ["ok", "fail"]


def test_a_reader_that_goes_away_gets_no_traceback() -> None:
    import subprocess

    command = "set -o pipefail; ./inv lock --check --offline --json | true"
    done = subprocess.run(
        ["bash", "-c", command], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
