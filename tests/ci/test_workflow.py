"""The workflow is rendered from the table of jobs, and keeps rules that are each seen to be broken."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from dih20.ci.jobs import load_jobs
from dih20.ci.workflow import CHECKOUT, WORKFLOW, render_workflow, workflow_text
from dih20.ci.workflow_rules import check_workflow, faults
from dih20.console import Console
from dih20.errors import ConfigError
from dih20.paths import REPOSITORY

JOBS = load_jobs()
TEXT = workflow_text(JOBS)
Change = Callable[[str], str]


def swap(old: str, new: str, count: int = 1) -> Change:
    def change(text: str) -> str:
        assert old in text, f"{old!r} is not in the workflow any more"
        return text.replace(old, new, count)

    return change


def test_the_committed_workflow_is_what_the_table_gives() -> None:
    assert WORKFLOW.read_text() == TEXT, "run `./inv ci --render` and commit the result"


def test_the_rendered_workflow_keeps_every_rule() -> None:
    assert list(faults(TEXT, JOBS)) == []


def test_no_other_workflow_stands_beside_it() -> None:
    assert [path.name for path in WORKFLOW.parent.iterdir()] == [WORKFLOW.name]


RUN_LINT = "run: ./inv ci --run lint"
BROKEN: dict[str, tuple[Change, str]] = {
    "not YAML": (swap("jobs:\n", "jobs: [\n"), "not YAML"),
    "a key twice": (swap("permissions:\n", "name: x\npermissions:\n"), "stand twice"),
    "unknown top key": (swap("concurrency:", "concurency:"), "unknown key 'concurency'"),
    "unknown job key": (swap("timeout-minutes: 20", "timeout: 20"), "unknown key 'timeout'"),
    "unknown step key": (swap(RUN_LINT, f"{RUN_LINT}\n        sh: bash"), "unknown key 'sh'"),
    "no end": (swap("    timeout-minutes: 20\n", ""), "timeout-minutes is None"),
    "unknown event": (swap("pull_request:", "pull_requests:"), "unknown event 'pull_requests'"),
    "foreign code with our rights": (
        swap("pull_request:", "pull_request_target:"),
        "foreign code the repository's rights",
    ),
    "tag instead of a commit": (
        swap(CHECKOUT, "actions/checkout@v5"),
        "actions/checkout@v5 is not pinned by a full commit",
    ),
    "short commit": (swap(CHECKOUT, CHECKOUT[:-8]), "is not pinned by a full commit"),
    "token left behind": (
        swap("        with:\n          persist-credentials: false\n", ""),
        "persist-credentials must be false",
    ),
    "rights to write": (swap("contents: read", "contents: write"), "more than contents: read"),
    "one right more": (
        swap("contents: read", "contents: read\n  packages: write"),
        "more than contents: read",
    ),
    "all rights": (
        swap("permissions:\n  contents: read", "permissions: write-all"),
        "permissions are 'write-all'",
    ),
    "rights not named": (
        swap("permissions:\n  contents: read\n", ""),
        "permissions are None",
    ),
    "rights of a job": (
        swap(
            "    timeout-minutes: 20\n",
            "    timeout-minutes: 20\n    permissions: {issues: write}\n",
        ),
        "job lint: permissions",
    ),
    "an event's text in a shell": (
        swap(RUN_LINT, f"{RUN_LINT} ${{{{ github.event.pull_request.title }}}}"),
        "an expression in run",
    ),
    "an event's text in the environment": (
        swap(RUN_LINT, f"{RUN_LINT}\n        env:\n          T: ${{{{ github.head_ref }}}}"),
        "jobs.lint.steps[2].env.T: expression 'github.head_ref'",
    ),
    "a secret": (
        swap(RUN_LINT, f"{RUN_LINT}\n        env:\n          T: ${{{{ secrets.KEY }}}}"),
        "expression 'secrets.KEY'",
    ),
    "a shell command of its own": (
        swap("run: sudo ci/host-setup.sh", "run: pip install ruff"),
        "runs `pip install ruff`",
    ),
    "a second command": (swap(RUN_LINT, f"{RUN_LINT}; true"), "only ci/host-setup.sh and"),
    "another job's task": (swap(RUN_LINT, "run: ./inv ci --run ssh"), "calls ['ci --run ssh']"),
    "a job left out": (
        lambda text: text[: text.index("  gpu:\n")],
        "the table has lint, test, docker, ssh, vendor, reproducible, gpu",
    ),
    "another runner": (swap("[ubuntu-24.04]", "[ubuntu-22.04]"), "the table says"),
    "a runner that moves": (swap("[ubuntu-24.04]", "[ubuntu-latest]"), "moves; name a release"),
    "pull requests on our machine": (
        swap(
            "if: github.event_name == 'workflow_dispatch'\n",
            "if: github.event_name != 'schedule'\n",
        ),
        "a pull request could run code on a self-hosted machine",
    ),
    "a condition on what others choose": (
        swap("if: github.event_name != 'schedule'", "if: github.actor != 'x'"),
        "asks for more than the event's name",
    ),
    "failures that do not count": (
        swap("    timeout-minutes: 20\n", "    timeout-minutes: 20\n    continue-on-error: true\n"),
        "continue-on-error is not for our jobs",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_workflow_that_breaks_a_rule_is_refused_and_the_rule_is_named(name: str) -> None:
    change, said = BROKEN[name]
    with pytest.raises(ConfigError) as caught:
        check_workflow(change(TEXT), JOBS)
    assert said in caught.value.found


def test_what_is_not_a_workflow_is_refused() -> None:
    for text in ("", "- a\n", "jobs: nothing\n"):
        assert list(faults(text, JOBS)) == ["not a workflow: no mapping with jobs"]


def test_rendering_writes_once_and_a_plan_writes_nothing(
    ui: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "workflows" / "ci.yml"
    monkeypatch.setattr("dih20.ci.workflow.WORKFLOW", path)
    assert render_workflow(ui, plan_only=True)["noop"] is False
    assert not path.exists()
    assert render_workflow(ui, plan_only=False)["noop"] is False
    assert path.read_text() == TEXT
    assert render_workflow(ui, plan_only=False)["noop"] is True


def test_the_set_up_that_jobs_call_is_there_and_can_be_run() -> None:
    script = REPOSITORY / "ci/host-setup.sh"
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True)
