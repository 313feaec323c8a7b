"""Dependencies that nothing answers and conflicts that hold are named; nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from dih20.debs.control import read_control
from dih20.debs.database import Package, parse_status
from dih20.debs.relations import faults
from dih20.errors import FetchError
from tests.image.small_debs import make_deb

STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.41-12
Depends: libgcc-s1
Description: C library
 Depends: this line belongs to the text above

Package: libgcc-s1
Status: install ok installed
Architecture: amd64
Version: 14.2.0-19
Pre-Depends: libc6 (>=
 2.35)

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0
"""


def package(name: str, version: str = "1.0", **more: str) -> Package:
    return Package(name=name, version=version, architecture="amd64", **more)


def test_a_status_file_gives_each_package_with_its_folded_fields() -> None:
    found = parse_status(STATUS)
    assert [str(p) for p in found.values()] == ["libc6 2.41-12", "libgcc-s1 14.2.0-19", "gone 1.0"]
    assert found["libgcc-s1", "amd64"].depends == "libc6 (>= 2.35)"
    assert found["libc6", "amd64"].depends == "libgcc-s1"
    assert [p.is_installed for p in found.values()] == [True, True, False]
    assert faults(p for p in found.values() if p.is_installed) == []


@pytest.mark.parametrize(
    ("depends", "provides", "answered"),
    [
        ("other", "", True),
        ("other (>= 2)", "", False),
        ("other (<< 2), other (= 1.0)", "", True),
        ("nowhere | other", "", True),
        ("nowhere | other (>> 1.0)", "", False),
        ("other:any (>= 1.0~)", "", True),
        ("virtual", "virtual", True),
        ("virtual (>= 1)", "virtual", False),
        ("virtual (>= 1)", "virtual (= 1.5), more", True),
        ("virtual (>= 2)", "virtual (= 1.5)", False),
    ],
)
def test_a_dependency_is_answered_by_a_name_a_version_or_what_is_provided(
    depends: str, provides: str, answered: bool
) -> None:
    found = faults([package("one", depends=depends), package("other", provides=provides)])
    assert (found == []) == answered, found


@pytest.mark.parametrize(
    ("conflicts", "provides", "holds"),
    [
        ("other", "", True),
        ("other (<< 1.0)", "", False),
        ("other (<= 1.0)", "", True),
        ("virtual", "virtual", True),
        ("virtual (<< 2)", "virtual", False),
        ("one", "", False),
    ],
)
def test_a_conflict_holds_with_what_is_there_and_never_with_the_package_itself(
    conflicts: str, provides: str, holds: bool
) -> None:
    found = faults([package("one", conflicts=conflicts), package("other", provides=provides)])
    assert (found != []) == holds, found


def test_a_package_says_what_it_is_without_dpkg(tmp_path: Path) -> None:
    make_deb(
        tmp_path, "tool", "2:1.5-3", extra="Pre-Depends: a\nDepends: b (>= 1),\n c\nBreaks: d\n"
    )
    found = read_control(tmp_path / "tool_2:1.5-3_all.deb")
    assert (found.name, found.version, found.architecture) == ("tool", "2:1.5-3", "all")
    assert (found.depends, found.conflicts) == ("a, b (>= 1), c", "d")


def test_a_file_that_is_no_package_is_named(tmp_path: Path) -> None:
    path = tmp_path / "page.deb"
    path.write_text("<html>not found</html>")
    with pytest.raises(FetchError, match=r"page\.deb cannot be read as a Debian package"):
        read_control(path)
    whole = make_deb(tmp_path, "cut")
    cut = tmp_path / whole.filename
    cut.write_bytes(cut.read_bytes()[:100])
    with pytest.raises(FetchError, match="cannot be read"):
        read_control(cut)
