"""A folder that apt and debootstrap take for a mirror, holding exactly the locked packages.

    mirror = local_mirror(lock.base("stand-in"), lock.base_debs("stand-in"))
    debootstrap --no-check-gpg ... trixie ROOT file://MIRROR

Every package was verified against the lock when it was fetched, which is a stronger check than the
archive's signature; so the folder carries no signature, and nothing in it can move.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dih20.errors import FetchError
from dih20.fetch.cache import cached
from dih20.lock.files import Base, LockedFile
from dih20.paths import cache_dir


def local_mirror(base: Base, debs: Sequence[LockedFile]) -> Path:
    """Give the mirror's folder; it is made once for each set of packages and kept in the cache."""
    lines = sorted(f"{deb.path} {deb.sha256}\n" for deb in debs)
    key = hashlib.sha256("".join([base.suite, base.architecture, *lines]).encode()).hexdigest()[:16]
    parent = cache_dir() / "deb-mirrors"
    parent.mkdir(parents=True, exist_ok=True)
    target = parent / key
    with (parent / f".{key}.guard").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not target.is_dir():
            fresh = parent / f".{key}.part"
            shutil.rmtree(fresh, ignore_errors=True)
            _fill(fresh, base, debs)
            fresh.rename(target)
    return target


def _fill(root: Path, base: Base, debs: Sequence[LockedFile]) -> None:
    for deb in debs:
        assert deb.path, f"{deb} has no path in a mirror"
        place = root / deb.path
        place.parent.mkdir(parents=True, exist_ok=True)
        _link(cached(deb), place)
    with ThreadPoolExecutor(4) as pool:
        stanzas = list(pool.map(_stanza, debs))
    index = root / f"dists/{base.suite}/main/binary-{base.architecture}/Packages"
    index.parent.mkdir(parents=True)
    content = "".join(
        f"{stanza}\n\n" for stanza in stanzas
    ).encode()  # debootstrap wants the last blank line
    index.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    (root / f"dists/{base.suite}/Release").write_text(
        f"Origin: dih20\nSuite: {base.suite}\nCodename: {base.suite}\n"
        f"Date: Thu, 01 Jan 1970 00:00:00 UTC\nArchitectures: {base.architecture}\nComponents: main\n"
        f"SHA256:\n {digest} {len(content)} main/binary-{base.architecture}/Packages\n"
    )


def _link(file: Path, place: Path) -> None:
    try:
        os.link(file, place)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(file, place)


def _stanza(deb: LockedFile) -> str:
    command = ["dpkg-deb", "--field", str(cached(deb))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as fault:
        raise FetchError(
            found="no dpkg-deb on this machine",
            expected="dpkg, which reads what a package needs",
            remedy="run this on Debian or Ubuntu, or install dpkg",
        ) from fault
    if done.returncode != 0:
        raise FetchError(
            found=f"{deb.filename} is not a readable package: {done.stderr.strip()[-200:]}",
            expected="a Debian package",
            remedy="run `./inv lock --only base,apt`, then `./inv fetch`",
        )
    return (
        f"{done.stdout.strip()}\nFilename: {deb.path}\nSize: {deb.size_bytes}\nSHA256: {deb.sha256}"
    )
