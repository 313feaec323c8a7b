"""Debian packages of a few bytes, made without dpkg, for steps that install them."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

from dih20.lock import LockedFile

_HEADER = "{name:<16}{mtime:<12}{owner:<6}{group:<6}{mode:<8}{size:<10}`\n"


def make_deb(folder: Path, name: str, version: str = "1.0", *, extra: str = "") -> LockedFile:
    """Write NAME_VERSION_all.deb with one file in it; `extra` are further lines of its control file."""
    control = (
        f"Package: {name}\nVersion: {version}\nArchitecture: all\n"
        f"Maintainer: nobody <n@example.org>\n{extra}Description: small\n"
    )
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": _tar({"./control": control.encode()}),
        "data.tar.gz": _tar({f"./opt/{name}": version.encode()}),
    }
    content = b"!<arch>\n" + b"".join(_member(n, data) for n, data in members.items())
    path = folder / f"{name}_{version}_all.deb"
    path.write_bytes(content)
    return LockedFile(
        name=name,
        version=version,
        filename=path.name,
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        kind="deb",
        path=f"pool/main/{name}/{path.name}",
        suite="trixie",
    )


def _member(name: str, data: bytes) -> bytes:
    header = _HEADER.format(name=name, mtime=0, owner=0, group=0, mode=100644, size=len(data))
    return header.encode() + data + b"\n" * (len(data) % 2)


def _tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.GNU_FORMAT) as archive:
        for name in dict.fromkeys(f"{Path(n).parent}/" for n in files):
            folder = tarfile.TarInfo(f"./{name}".replace("././", "./"))
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()
