"""Write a wheel again with fixed times and order, and with the patchset's mark in its version.

Two builds with the same content then are the same bytes, and a wheel built from a patched tree
cannot pass for the upstream's. Members are stored, not compressed: what deflate makes of them
depends on the zlib of the python that runs this tool, which nobody locks.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from dih20.errors import WheelError
from dih20.source_date import source_date


def repack(
    built: Path,
    into: Path,
    *,
    local_version: str = "",
    beside: Callable[[str], Mapping[str, bytes]] = lambda version: {},
) -> Path:
    """Give the rewritten wheel in a folder; its name carries the version it says inside.

    Args:
        beside: gives, for the version, the files to put beside METADATA: content by the name there.
    """
    from packaging.utils import parse_wheel_filename
    from packaging.version import Version

    _, version, _, _ = parse_wheel_filename(built.name)
    with zipfile.ZipFile(built) as archive:
        files = {i.filename: archive.read(i) for i in archive.infolist() if not i.is_dir()}
        modes = {i.filename: (i.external_attr >> 16) & 0o777 for i in archive.infolist()}
    old_info = _dist_info(files, built.name)
    stem = old_info.removesuffix(".dist-info").rsplit("-", 1)[0]
    marked = (
        version
        if not local_version
        else Version(f"{version.public}+{_joined(version.local, local_version)}")
    )
    new_info = f"{stem}-{marked}.dist-info"
    renamed = {_renamed(name, old_info, new_info): content for name, content in files.items()}
    new_modes = {_renamed(name, old_info, new_info): mode for name, mode in modes.items()}
    if local_version:
        metadata = f"{new_info}/METADATA"
        renamed[metadata] = _with_version(renamed[metadata], str(marked))
    renamed |= {f"{new_info}/{name}": content for name, content in beside(str(marked)).items()}
    renamed.pop(f"{new_info}/RECORD", None)
    renamed[f"{new_info}/RECORD"] = _record(renamed, f"{new_info}/RECORD")
    tag = built.name.removesuffix(".whl").split("-", 2)[2]
    target = into / f"{stem}-{marked}-{tag}.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(renamed, key=lambda n: (".dist-info/" in n, n)):
            info = zipfile.ZipInfo(name, source_date().timetuple()[:6])
            info.create_system = 3  # Unix, wherever this runs: installers read the modes by it
            mode = 0o755 if new_modes.get(name, 0) & 0o111 else 0o644
            info.external_attr = (0o100000 | mode) << 16
            archive.writestr(info, renamed[name])
    return target


def _joined(local: str | None, label: str) -> str:
    return f"{local}.{label}" if local else label


def _dist_info(files: dict[str, bytes], name: str) -> str:
    found = {path.split("/")[0] for path in files if path.split("/")[0].endswith(".dist-info")}
    if len(found) != 1:
        raise WheelError(
            found=f"{name} holds {len(found)} dist-info folders",
            expected="exactly one",
            remedy="see in the build log what made it",
        )
    return found.pop()


def _renamed(name: str, old: str, new: str) -> str:
    return new + name[len(old) :] if name.startswith(f"{old}/") else name


def _with_version(metadata: bytes, version: str) -> bytes:
    head, separator, body = metadata.partition(b"\n\n")
    lines = [
        f"Version: {version}".encode() if line.startswith(b"Version:") else line
        for line in head.split(b"\n")
    ]
    return b"\n".join(lines) + separator + body


def _record(files: dict[str, bytes], own: str) -> bytes:
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    for name in sorted(files):
        digest = (
            base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        )
        rows.writerow([name, f"sha256={digest}", len(files[name])])
    rows.writerow([own, "", ""])
    return out.getvalue().encode()
