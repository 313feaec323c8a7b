"""Which patches apply in which order, and what is refused in their folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from dih20.errors import PatchError
from dih20.patches.diff_file import read_diff
from dih20.patches.series import TRAILERS, load, unlisted

DIFF = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sm90/later").mkdir(parents=True)
    (tmp_path / "user").mkdir()
    for name in (
        "sm90/b.patch",
        "sm90/a.patch",
        "sm90/later/c.patch",
        "user/2.patch",
        "user/10.diff",
    ):
        (tmp_path / name).write_text(DIFF)
    (tmp_path / "user/README.md").write_text("about this folder")
    (tmp_path / "sm90/series").write_text("# first\nb.patch  # why b\n\nlater/c.patch\na.patch\n")
    return tmp_path


def names(folder: Path, source: str = "deepinfer") -> list[str]:
    return [patch.name for patch in load(source, folder)]


def test_the_series_comes_in_its_order_then_users_files_by_name(folder: Path) -> None:
    assert names(folder) == [
        "sm90/b.patch",
        "sm90/later/c.patch",
        "sm90/a.patch",
        "user/10.diff",
        "user/2.patch",
    ]
    assert [patch.origin for patch in load("deepinfer", folder)] == ["series"] * 3 + ["user"] * 2


def test_another_source_has_a_folder_of_its_own(folder: Path) -> None:
    assert names(folder, "deep_gemm") == []
    (folder / "user/deep_gemm").mkdir()
    (folder / "user/deep_gemm/x.patch").write_text(DIFF)
    assert names(folder, "deep_gemm") == ["user/deep_gemm/x.patch"]
    assert "user/deep_gemm/x.patch" not in names(folder)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("missing.patch", r"series:2: there is no file missing\.patch"),
        ("a.patch\na.patch", r"series:3: a\.patch stands there twice"),
        ("../user/2.patch", r"series:2: \.\./user/2\.patch lies outside its folder"),
        ("p01-causal-rule", "series:2: p01-causal-rule is neither a .patch file nor a folder"),
    ],
)
def test_a_wrong_line_in_the_series_is_named(folder: Path, line: str, why: str) -> None:
    (folder / "sm90/series").write_text(f"# ours\n{line}\n")
    with pytest.raises(PatchError, match=why):
        load("deepinfer", folder)


@pytest.mark.parametrize("name", ["fix.patch~", "fix.txt", "fix.patch.orig"])
def test_a_file_that_would_be_overlooked_is_refused(folder: Path, name: str) -> None:
    (folder / "user" / name).write_text(DIFF)
    with pytest.raises(PatchError, match="is not a patch"):
        load("deepinfer", folder)


def test_a_patch_beside_the_series_that_it_does_not_name_is_told(folder: Path) -> None:
    assert unlisted(folder) == []
    (folder / "sm90/forgotten.patch").write_text(DIFF)
    assert unlisted(folder) == ["sm90/forgotten.patch"]


def test_trailers_are_read_from_above_the_diff_only(folder: Path) -> None:
    text = (
        "Subject: x\n\nreason: kernels differ\nUpstream: owner/repo#12\nRemovable-when: upstream reads it\n"
        + DIFF
        + "Reason: not this one\n"
    )
    (folder / "user/2.patch").write_text(text)
    assert load("deepinfer", folder)[-1].trailers == {
        "Reason": "kernels differ",
        "Upstream": "owner/repo#12",
        "Removable-when": "upstream reads it",
    }


def test_our_own_series_is_sound_and_says_why_each_patch_is_there() -> None:
    assert unlisted() == []
    for patch in load(test_only=True):
        if patch.folder is None:
            assert read_diff(patch.name, patch.text)
        if patch.origin == "series":
            assert set(patch.trailers) == set(TRAILERS), patch.name
