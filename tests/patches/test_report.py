"""`inv patch` as a person sees it: check, status, diff, plan."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dih20.console import Console
from dih20.doctor.registry import Finding, Subject
from dih20.errors import PatchError, PatchMalformed, UsageError
from dih20.hosts.fake import FakeRunner
from dih20.lock import Lock
from dih20.lock.canonical import write
from dih20.patches import report
from dih20.patches.applying import Outcome
from dih20.patches.checks import patchset
from dih20.patches.resulting_diff import resulting_diff
from dih20.patches.tree import Tree, tree_hash

Files = dict[str, bytes]
MakeTree = Callable[[Files], Tree]
GitDiff = Callable[..., bytes]
Capture = pytest.CaptureFixture[str]
TEXT = b"".join(b"line %d\n" % n for n in range(30))
NINE = TEXT.replace(b"line 9\n", b"line nine\n")


def test_check_prints_a_state_for_each_patch_and_fails_when_one_is_refused(
    patches: Path, make_tree: MakeTree, git_diff: GitDiff, capsys: Capture
) -> None:
    tree = make_tree({"a.py": TEXT, "b.py": NINE, "c.py": b"# drift\n" + TEXT, "d.py": b"other\n"})
    before = tree_hash(tree)
    for name in "abcd":
        (patches / f"user/{name}.patch").write_bytes(
            git_diff({f"{name}.py": TEXT}, {f"{name}.py": NINE})
        )
    (patches / "user/e.patch").write_bytes(
        git_diff({"e": b"1\n"}, {"e": b"2\n"}).replace(b"\n", b"\r\n")
    )
    with pytest.raises(PatchError, match=r"user/d\.patch does not apply: d\.py: hunk 1 of 1"):
        report.check(Console(), "deepinfer", str(tree.root))
    out = capsys.readouterr().out
    rows = {
        line.split("│")[1].strip(): line
        for line in out.splitlines()
        if "user/" in line and "│" in line
    }
    assert "applied" in rows["user/a.patch"]
    assert "already" in rows["user/b.patch"]
    assert "moved" in rows["user/c.patch"]
    assert "does not" in rows["user/d.patch"]
    assert "malformed" in rows["user/e.patch"]
    assert tree_hash(Tree(tree.root)) == before


def test_check_of_a_malformed_patch_has_an_error_of_its_own(
    patches: Path, make_tree: MakeTree, git_diff: GitDiff
) -> None:
    (patches / "user/e.patch").write_bytes(
        git_diff({"e": b"1\n"}, {"e": b"2\n"}).replace(b"\n", b"\r\n")
    )
    with pytest.raises(PatchMalformed, match="CRLF at line 1"):
        report.check(Console(), "deepinfer", str(make_tree({"e": b"1\n"}).root))


def test_check_gives_values_for_json(patches: Path, make_tree: MakeTree, git_diff: GitDiff) -> None:
    (patches / "user/c.patch").write_bytes(git_diff({"c.py": TEXT}, {"c.py": NINE}))
    result = report.check(
        Console(), "deepinfer", str(make_tree({"c.py": b"# drift\n" + TEXT}).root)
    )
    assert result["patches"] == [
        {
            "name": "user/c.patch",
            "state": "moved",
            "note": "c.py: hunk 1 by +1 lines",
            "files": ["c.py"],
        }
    ]
    assert len(result["identity"]) == 64


def test_status_lists_reasons_and_warns_of_what_is_not_in_the_series(
    patches: Path, git_diff: GitDiff, capsys: Capture
) -> None:
    diff = git_diff({"a": b"1\n"}, {"a": b"2\n"})
    (patches / "sm90/x.patch").write_bytes(diff)
    (patches / "user/a.patch").write_bytes(b"Reason: because\n" + diff)
    result = report.status(Console(), "deepinfer")
    out = capsys.readouterr().out
    assert "user/a.patch  (user, sha256 " in out
    assert "    Reason: because" in out
    assert "! sm90/x.patch is not named in patches/sm90/series, so it is not applied" in out
    assert result["not in series"] == ["sm90/x.patch"]


def test_diff_prints_one_diff_that_git_applies_to_the_same_tree(
    patches: Path, make_tree: MakeTree, git_diff: GitDiff, capsys: Capture
) -> None:
    before: Files = {"a.py": TEXT, "gone.py": b"g\n", "run.sh": b"#!\n", "t": b"\tx\nend"}
    after: Files = {
        "a.py": NINE,
        "run.sh*": b"#!\n",
        "n d/new.py": b"n",
        "t": b"\ty\nend\n",
        "void": b"",
    }
    (patches / "user/1.patch").write_bytes(git_diff(before, after))
    tree = make_tree(before)
    result = report.diff(Console(), "deepinfer", str(tree.root))
    out = capsys.readouterr().out
    assert out == result["diff"]
    assert tree_hash(Tree(tree.root)) == tree_hash(make_tree(before))
    subprocess.run(["git", "init", "-q"], cwd=tree.root, check=True)
    subprocess.run(["git", "apply", "-"], cwd=tree.root, input=out.encode(), check=True)
    assert tree_hash(Tree(tree.root)) == tree_hash(make_tree(after))


def test_the_resulting_diff_of_any_change_applies_again(
    make_tree: MakeTree, git_diff: GitDiff, apply: Callable[[Tree, bytes], Outcome]
) -> None:
    before: Files = {
        "a.py": TEXT,
        'caf\u00e9 "x".txt': "\u00e9".encode("latin-1"),
        "p": b"1\r\n2\n",
    }
    after: Files = {
        "b/a.py": NINE,
        'caf\u00e9 "x".txt': "\u00e9\u00e9".encode("latin-1"),
        "p": b"1\n2\n",
    }
    first = make_tree(before)
    assert apply(first, git_diff(before, after)).ok
    second = make_tree(before)
    assert apply(second, resulting_diff(first)).state == "applied"
    assert tree_hash(second) == tree_hash(first)


@pytest.mark.parametrize(
    "flags",
    [
        {"check": True, "status": True},
        {"plan": True, "diff": True},
        {"tree": "x"},
        {"status": True, "tree": "x"},
        {"undo": True},
        {"diagnose": True},
        {"in_place": True, "undo": True, "tree": "x"},
        {"undo": True, "tree": "x", "test_only": True},
    ],
)
def test_flags_that_contradict_each_other_are_refused(flags: dict[str, bool | str]) -> None:
    given = {"plan": False, "check": False, "status": False, "diff": False, "tree": "", **flags}
    with pytest.raises(UsageError):
        report.require_one_mode(**given)  # type: ignore[arg-type]


def test_one_flag_or_none_is_taken() -> None:
    report.require_one_mode(plan=False, check=False, status=False, diff=False, tree="")
    report.require_one_mode(plan=False, check=True, status=False, diff=False, tree="x")
    report.require_one_mode(plan=True, in_place=True, tree="x")
    report.require_one_mode(plan=True, test_only=True)


def test_a_tree_that_is_no_folder_is_named(patches: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere is not a folder"):
        report.check(Console(), "deepinfer", str(tmp_path / "nowhere"))


def findings() -> list[Finding]:
    return list(patchset(Subject(runner=FakeRunner())))


def test_doctor_says_whether_the_patchset_applies(
    patches: Path,
    sdist_lock: Callable[[Files], Lock],
    git_diff: GitDiff,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DI_LOCK", str(tmp_path / "di.lock.yaml"))
    assert [found.status for found in findings()] == ["not run"]
    write(sdist_lock({"a.py": TEXT}), tmp_path / "di.lock.yaml")
    (patches / "user/a.patch").write_bytes(git_diff({"a.py": TEXT}, {"a.py": NINE}))
    assert findings() == [Finding.ok("1 patch on the locked upstream, none refused")]
    (patches / "user/b.patch").write_bytes(git_diff({"b.py": TEXT}, {"b.py": NINE}))
    assert [found.status for found in findings()] == ["fail"]
    assert "user/b.patch does not apply: there is no file b.py" in findings()[0].found


def test_plan_says_what_would_be_made_and_makes_nothing(
    patches: Path,
    sdist_lock: Callable[[Files], Lock],
    git_diff: GitDiff,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DI_LOCK", str(tmp_path / "di.lock.yaml"))
    write(sdist_lock({"a.py": TEXT}), tmp_path / "di.lock.yaml")
    (patches / "user/a.patch").write_bytes(git_diff({"a.py": TEXT}, {"a.py": NINE}))
    planned = report.plan(Console(), "deepinfer")
    assert [(a["verb"], a["needed"]) for a in planned["actions"]] == [
        ("apply", True),
        ("write", True),
    ]
    assert not (tmp_path / "build").exists()
    made = report.apply(Console(), "deepinfer")
    assert made["identity"] in planned["actions"][-1]["target"]
    assert report.plan(Console(), "deepinfer")["noop"] is True
