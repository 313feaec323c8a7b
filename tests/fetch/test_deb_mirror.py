"""local_mirror: a folder that apt takes for a mirror, made of verified packages only."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from dih20.console import Console
from dih20.errors import FetchError
from dih20.fetch import fetch_files
from dih20.fetch.deb_mirror import local_mirror
from dih20.lock import Base, LockedFile
from tests.index.fixtures import StartIndex

BASE = Base(
    name="stand-in",
    suite="trixie",
    architecture="amd64",
    digest="unresolved",
    python_tag="cp313",
    torch="none",
    glibc="2.41",
)


def build_deb(folder: Path, name: str, depends: str = "") -> bytes:
    """Build a real, empty package."""
    tree = folder / name
    (tree / "DEBIAN").mkdir(parents=True)
    needs = f"Depends: {depends}\n" if depends else ""
    (tree / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: 1.0\nArchitecture: amd64\nMaintainer: nobody <n@example.org>\n{needs}Description: x\n"
    )
    made = folder / f"{name}.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-b", str(tree), str(made)],
        check=True,
        capture_output=True,
    )
    return made.read_bytes()


def pinned(name: str, content: bytes) -> LockedFile:
    path = f"pool/main/{name[0]}/{name}/{name}_1.0_amd64.deb"
    return LockedFile(
        name=name,
        version="1.0",
        filename=path.rsplit("/", 1)[-1],
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        kind="deb",
        path=path,
        suite="trixie",
    )


def test_apt_resolves_from_it_and_every_stanza_ends_with_a_blank_line(
    start_index: StartIndex, ui: Console, tmp_path: Path
) -> None:
    from dih20.config.mirrors import Mirrors
    from dih20.lock.apt_root import prepare_root

    contents = {
        "alpha": build_deb(tmp_path, "alpha", "omega"),
        "omega": build_deb(tmp_path, "omega"),
    }
    debs = [pinned(name, content) for name, content in contents.items()]
    server = start_index(pool={f"/{deb.path}": contents[deb.name] for deb in debs})
    fetch_files(ui, debs, Mirrors(apt={"trixie": (server.root,)}))
    mirror = local_mirror(BASE, debs)
    assert (mirror / "dists/trixie/main/binary-amd64/Packages").read_text().endswith("\n\n")
    apt = prepare_root(
        tmp_path / "root", "trixie", "amd64", f"file://{mirror}", source="[trusted=yes]"
    )
    assert [(f.name, f.sha256) for f in apt.closure(["alpha"])] == [
        (d.name, d.sha256) for d in debs
    ]
    assert local_mirror(BASE, debs) == mirror


def test_a_package_that_was_not_fetched_is_an_error_and_leaves_no_mirror(
    tmp_path: Path, cache: Path
) -> None:
    with pytest.raises(FetchError, match="not in the cache"):
        local_mirror(BASE, [pinned("alpha", b"never fetched")])
    assert [p.name for p in (cache / "deb-mirrors").iterdir() if not p.name.startswith(".")] == []
