"""F08: discovery must take the complete folder, say why the others are not, and never go on without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dih20.errors import NcclMismatch
from dih20.wheels.inside.look import nccl_folder
from dih20.wheels.nccl_root import pick_nccl

HEADER = "#define NCCL_MAJOR {}\n#define NCCL_MINOR {}\n#define NCCL_PATCH {}\n"


def _root(folder: Path, *, library: bool, version: str | None) -> Path:
    (folder / "lib").mkdir(parents=True)
    (folder / "include").mkdir()
    if library:
        (folder / "lib" / "libnccl.so.2").touch()
    if version:
        (folder / "include" / "nccl.h").write_text(HEADER.format(*version.split(".")))
    return folder


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    return [
        _root(tmp_path / "lib-only", library=True, version=None),
        _root(tmp_path / "header-only", library=False, version="2.32.3"),
        _root(tmp_path / "older", library=True, version="2.28.9"),
        _root(tmp_path / "complete", library=True, version="2.32.3"),
        _root(tmp_path / "second", library=True, version="2.32.3"),
    ]


def test_the_complete_folder_is_picked_and_the_others_are_listed_with_reasons(
    roots: list[Path],
) -> None:
    search = pick_nccl([nccl_folder(root) for root in roots], version="2.32.3")
    assert search.picked.path == str(roots[3])
    assert search.lines[0] == f"NCCL 2.32.3 at {roots[3]} (libnccl.so.2)"
    reasons = dict(search.rejected)
    assert "no include/nccl.h" in reasons[str(roots[0])]
    assert "no lib/libnccl.so" in reasons[str(roots[1])]
    assert "2.28.9" in reasons[str(roots[2])]
    assert str(roots[3]) in reasons[str(roots[4])]


def test_no_complete_folder_is_an_error_that_lists_every_reason(roots: list[Path]) -> None:
    with pytest.raises(NcclMismatch) as caught:
        pick_nccl([nccl_folder(root) for root in roots[:3]], version="2.32.3")
    for root in roots[:3]:
        assert str(root) in caught.value.found
    assert "2.32.3" in caught.value.expected


def test_no_folder_at_all_is_an_error_too() -> None:
    with pytest.raises(NcclMismatch, match="no folder holds any of it"):
        pick_nccl([], version="2.32.3")
