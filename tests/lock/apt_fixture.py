"""A private apt root that knows four packages, from a mirror that is a folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dih20.lock.apt_root import AptRoot, prepare_root

CONTROL = """\
Package: {name}
Version: 1.0
Architecture: amd64
Maintainer: nobody <n@example.org>
Installed-Size: 10
{extra}Filename: pool/main/{name}_1.0_amd64.deb
Size: 10
SHA256: {sha256}
Description: x
"""


def small_apt(folder: Path) -> AptRoot:
    """Give a root that knows: tool needs lib exactly; lib needs base; extra recommends base."""
    packages = [
        stanza("tool", "Depends: lib (= 1.0)\n"),
        stanza("lib", "Depends: base\n"),
        stanza("base"),
        stanza("extra", "Recommends: base\n"),
    ]
    index = folder / "mirror/dists/trixie/main/binary-amd64/Packages"
    index.parent.mkdir(parents=True)
    index.write_text("\n".join(packages) + "\n")
    digest = hashlib.sha256(index.read_bytes()).hexdigest()
    (folder / "mirror/dists/trixie/Release").write_text(
        "Suite: trixie\nCodename: trixie\nArchitectures: amd64\nComponents: main\n"
        f"SHA256:\n {digest} {index.stat().st_size} main/binary-amd64/Packages\n"
    )
    mirror = f"file://{folder}/mirror"
    return prepare_root(folder / "root", "trixie", "amd64", mirror, source="[trusted=yes]")


def stanza(name: str, extra: str = "") -> str:
    """Give a package's entry in the mirror's index."""
    return CONTROL.format(name=name, extra=extra, sha256=f"{sum(name.encode()):064x}")
