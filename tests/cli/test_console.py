"""What a task prints: a line per step, errors in three parts, or one JSON object."""

from __future__ import annotations

import json
import re

import pytest

from dih20.console import Console
from dih20.errors import PatchError
from dih20.plan import Action, Plan

Capture = pytest.CaptureFixture[str]


def test_a_step_prints_one_line_with_its_duration(capsys: Capture) -> None:
    ui = Console()
    with ui.step("build", "layer 10-apt"):
        pass
    assert re.fullmatch(r"✓ build layer 10-apt  0\.\d s\n", capsys.readouterr().out)


def test_a_step_may_say_hit_or_miss_and_why(capsys: Capture) -> None:
    ui = Console()
    with ui.step("build", "layer") as step:
        step.status, step.note = "miss", "the script changed"
    assert re.fullmatch(
        r"\+ build layer  miss  the script changed  0\.\d s\n", capsys.readouterr().out
    )


def test_a_failing_step_prints_its_line_and_lets_the_error_through(capsys: Capture) -> None:
    ui = Console()
    with pytest.raises(KeyError), ui.step("build", "layer"):
        raise KeyError
    assert capsys.readouterr().out.startswith("✗ build layer  failed")
    assert ui.steps[0].status == "failed"


def test_text_of_others_is_not_taken_for_markup(capsys: Capture) -> None:
    ui = Console()
    ui.line("[bold]x[/bold] [/nothing]")
    ui.table(["name"], [["[red]"]])
    out = capsys.readouterr().out
    assert "[bold]x[/bold] [/nothing]\n" in out
    assert "[red]" in out


def test_long_lines_are_not_folded_and_raw_text_keeps_its_tabs(capsys: Capture) -> None:
    ui = Console()
    ui.line("x" * 500)
    ui.raw("-\ta\n")
    assert capsys.readouterr().out == "x" * 500 + "\n-\ta\n"


def test_an_error_is_printed_in_its_three_parts(capsys: Capture) -> None:
    Console().fail(PatchError(found="f", expected="e", remedy="r"))
    assert capsys.readouterr().out == "error: f\n  expected: e\n  next:     r\n"


def test_a_plan_marks_what_is_to_do_done_and_unknown(capsys: Capture) -> None:
    actions = (
        Action(verb="send", target="layer 1", why="the host lacks it"),
        Action(verb="create", target="container", needed=False),
        Action(verb="check", target="driver", needed=None),
    )
    Console().plan(Plan(title="deploy", actions=actions))
    assert capsys.readouterr().out.splitlines() == [
        "deploy",
        "  + send layer 1   (the host lacks it)",
        "  = create container",
        "  ? check driver",
    ]


def test_with_json_prose_goes_to_stderr_and_stdout_holds_one_object(capsys: Capture) -> None:
    ui = Console(as_json=True)
    with ui.step("fetch", "a wheel") as step:
        step.details["size_bytes"] = 3
    ui.line("prose")
    ui.finish("fetch", {"files": 1})
    out, err = capsys.readouterr()
    assert json.loads(out)["result"] == {"files": 1}
    assert json.loads(out)["steps"][0]["size_bytes"] == 3
    assert "prose" in err
    assert "prose" not in out


def test_without_json_nothing_is_added_at_the_end(capsys: Capture) -> None:
    Console().finish("fetch", {"files": 1})
    assert capsys.readouterr().out == ""
