"""Lay out locked packages as an apt mirror in a folder, so that debootstrap needs no network.

It is not signed: every file in it was compared with its sha256 in the lock before it came here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dih20.errors import ImageError
from dih20.lock import LockedFile


def make_mirror(
    packages: Sequence[LockedFile],
    folder: Path,
    *,
    suite: str,
    architecture: str,
    find: Callable[[LockedFile], Path],
) -> Path:
    """Write the mirror into `folder`; `find` gives the verified file of a package."""
    paths = {package.filename: find(package) for package in packages}
    pool = folder / "pool"
    pool.mkdir(parents=True)
    for path in paths.values():
        _link(path, pool / path.name)
    with ThreadPoolExecutor(max_workers=4) as threads:
        stanzas = list(threads.map(lambda p: _stanza(p, paths[p.filename]), packages))
    index = "".join(f"{stanza}\n\n" for stanza in stanzas).encode()
    binary = f"main/binary-{architecture}"
    dists = folder / "dists" / suite
    (dists / binary).mkdir(parents=True)
    (dists / binary / "Packages").write_bytes(index)
    digest = hashlib.sha256(index).hexdigest()
    lines = [f"Suite: {suite}", f"Codename: {suite}", f"Architectures: {architecture}"]
    lines += ["Components: main", "SHA256:", f" {digest} {len(index)} {binary}/Packages"]
    (dists / "Release").write_text("\n".join(lines) + "\n")
    return folder


def _stanza(package: LockedFile, path: Path) -> str:
    done = subprocess.run(
        ["dpkg-deb", "--field", str(path)], check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise ImageError(
            found=f"dpkg-deb cannot read {path.name}: {done.stderr.strip()}",
            expected="a Debian package, as its sha256 in the lock says",
            remedy="./inv fetch, then run the command again",
        )
    own = [
        f"Filename: pool/{path.name}",
        f"Size: {package.size_bytes}",
        f"SHA256: {package.sha256}",
    ]
    return "\n".join([done.stdout.strip(), *own])


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # the cache is on another file system
        shutil.copyfile(source, target)
