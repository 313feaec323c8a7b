"""A private apt root that knows four packages, from a mirror that is a folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dih20.lock.apt_root import AptRoot, prepare_root

CONTROL = """\
Package: {name}
Version: {version}
Architecture: amd64
Maintainer: nobody <n@example.org>
Installed-Size: 10
{extra}Filename: pool/main/{name}_{version}_amd64.deb
Size: 10
SHA256: {sha256}
Description: x
"""


def small_apt(folder: Path) -> AptRoot:
    """Give a root that knows: tool needs lib exactly; lib needs base; extra recommends base."""
    packages = [
        ("tool", "1.0", "Depends: lib (= 1.0)\n"),
        ("lib", "1.0", "Depends: base\n"),
        ("base", "1.0", ""),
        ("extra", "1.0", "Recommends: base\n"),
    ]
    return apt_with(folder, packages)


def apt_with(folder: Path, packages: list[tuple[str, str, str]]) -> AptRoot:
    """Give a root whose mirror has these packages: name, version, further lines of the entry."""
    index = folder / "mirror/dists/trixie/main/binary-amd64/Packages"
    index.parent.mkdir(parents=True)
    index.write_text("\n".join(stanza(*package) for package in packages) + "\n")
    digest = hashlib.sha256(index.read_bytes()).hexdigest()
    (folder / "mirror/dists/trixie/Release").write_text(
        "Suite: trixie\nCodename: trixie\nArchitectures: amd64\nComponents: main\n"
        f"SHA256:\n {digest} {index.stat().st_size} main/binary-amd64/Packages\n"
    )
    mirror = f"file://{folder}/mirror"
    return prepare_root(folder / "root", "trixie", "amd64", mirror, source="[trusted=yes]")


def stanza(name: str, version: str, extra: str = "") -> str:
    """Give a package's entry in the mirror's index."""
    sha256 = f"{sum((name + version).encode()):064x}"
    return CONTROL.format(name=name, version=version, extra=extra, sha256=sha256)
