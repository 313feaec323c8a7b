"""Which apt mirrors hold a suite, read from configuration, the machine's sources, or debootstrap."""

from __future__ import annotations

from pathlib import Path

import pytest

from dih20.config.mirrors import Mirrors
from dih20.errors import FetchError
from dih20.index import apt_mirrors as module
from dih20.index.apt_mirrors import apt_mirrors

DEB822 = """\
Types: deb
# http://old.invalid/debian
URIs: http://deb.invalid/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: http://deb.invalid/debian-security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://off.invalid/debian
Suites: bookworm
Components: main

Types: deb deb-src
URIs: https://other.invalid/node
Suites: nodistro
Components: main
"""


def sources(tmp_path: Path, *, deb822: str = "", one_line: str = "") -> Path:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d/some.sources").write_text(deb822)
    (tmp_path / "sources.list").write_text(one_line)
    return tmp_path


def test_the_configuration_wins() -> None:
    mirrors = Mirrors(apt={"trixie": ("http://ours.invalid/debian/",)})
    found = apt_mirrors(mirrors, "trixie")
    assert (found.roots, found.source) == (("http://ours.invalid/debian",), "configs/mirrors.yaml")


def test_a_source_of_the_same_distribution_serves_another_suite(tmp_path: Path) -> None:
    found = apt_mirrors(Mirrors(), "trixie", etc=sources(tmp_path, deb822=DEB822))
    assert found.roots == ("http://deb.invalid/debian",)
    assert found.source == "this machine's apt sources"


def test_one_line_sources_are_read_too(tmp_path: Path) -> None:
    line = "deb [arch=amd64 signed-by=/k.gpg] http://one.invalid/ubuntu noble main\n# deb http://no.invalid/u noble main\n"
    assert apt_mirrors(Mirrors(), "noble", etc=sources(tmp_path, one_line=line)).roots == (
        "http://one.invalid/ubuntu",
    )


def test_a_machine_of_another_distribution_takes_debootstrap_s_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "debootstrap").write_text('DEF_MIRROR="http://mirror.invalid/debian"\n')
    (tmp_path / "scripts/gutsy").write_text(
        "case $SUITE in\n  gutsy)\n\tdefault_mirror http://old.invalid/u\n\t;;\n  *)\n\tdefault_mirror http://new.invalid/u\n"
    )
    monkeypatch.setattr(module, "_DEBOOTSTRAP", tmp_path / "debootstrap")
    monkeypatch.setattr(module, "_SCRIPTS", tmp_path / "scripts")
    etc = sources(tmp_path, deb822=DEB822)
    assert apt_mirrors(Mirrors(), "noble", etc=etc).roots == ("http://new.invalid/u",)
    (etc / "sources.list.d/some.sources").unlink()
    assert apt_mirrors(Mirrors(), "trixie", etc=etc).roots == ("http://mirror.invalid/debian",)


def test_a_suite_that_nobody_knows_names_where_to_declare_a_mirror(tmp_path: Path) -> None:
    with pytest.raises(FetchError) as fault:
        apt_mirrors(Mirrors(), "beowulf", etc=sources(tmp_path))
    assert "beowulf" in fault.value.found
    assert "configs/mirrors.yaml" in fault.value.remedy
