"""Write an image's normal form in a container on the engine's own machine, so that no layer travels.

    python3 normal.zip /mnt/wanted.json >archive 2>report

Standard library only, like all that it imports: it is run by the python of the image itself. The
archive goes to stdout; the last line of stderr is one JSON object that says what was written.
"""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dih20.errors import ImageError
from dih20.image.archive.normal_archive import NormalArchive, OwnLayer
from dih20.image.archive.normal_config import ImageFrame
from dih20.image.archive.raw_layer import FolderLayer, may_read_folders

# What the program is made of; a test sees that nothing else is imported.
_PARTS = (
    "dih20/__init__.py",
    "dih20/errors.py",
    "dih20/paths.py",
    "dih20/source_date.py",
    "dih20/image/__init__.py",
    "dih20/image/jsonfeed.py",
    "dih20/image/archive/*.py",
)
_MAIN = "from dih20.image.archive.normal_program import main\nmain()\n"


def program() -> bytes:
    """Give the program as one file that python runs; the same code gives the same bytes."""
    root = Path(__file__).resolve().parents[3]
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for part in _PARTS
        for path in root.glob(part)
    }
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as out:
        for name, content in sorted({**files, "__main__.py": _MAIN.encode()}.items()):
            out.writestr(zipfile.ZipInfo(name), content)
    return raw.getvalue()


def wanted_text(archive: NormalArchive, folders: Mapping[str, str]) -> str:
    """Give what the program is to write; folders says where the container sees each layer."""
    own = [
        {"diff_id": o.diff_id, "normal": o.normal, "folder": folders.get(o.diff_id)}
        for o in archive.own
    ]
    return json.dumps({"frame": asdict(archive.frame), "base": list(archive.base), "own": own})


def archive_of(wanted: Mapping[str, Any]) -> NormalArchive:
    """Read what wanted_text wrote."""
    frame = dict(wanted["frame"])
    for name in ("base_history", "steps"):
        frame[name] = tuple(frame[name])
    own: Sequence[Mapping[str, Any]] = wanted["own"]
    layers = [
        OwnLayer(
            diff_id=o["diff_id"],
            normal=o["normal"],
            raw=FolderLayer(Path(o["folder"])) if o["normal"] is None else None,
        )
        for o in own
    ]
    return NormalArchive(frame=ImageFrame(**frame), base=wanted["base"], own=layers)


def main() -> None:
    """Write the archive of the file that is named on the command line."""
    if not may_read_folders():
        sys.exit(
            "the container has not the capability SYS_ADMIN: an overlay's attributes are hidden"
        )
    archive = archive_of(json.loads(Path(sys.argv[1]).read_text()))
    try:
        for chunk in archive.chunks():
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
    except ImageError as problem:
        sys.exit(str(problem))
    except BrokenPipeError:
        sys.exit("the engine stopped reading")
    report = {
        "normal": archive.normal,
        "image_id": archive.image_id,
        "diff_ids": archive.diff_ids,
        "written_bytes": archive.written_bytes,
        "left_out": archive.left_out,
    }
    print(json.dumps(report), file=sys.stderr)
