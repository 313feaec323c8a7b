"""The working tree as a tar: tracked files and new ones that git does not ignore, and nothing else."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path
from typing import BinaryIO

from dih20.errors import UsageError
from dih20.paths import shown


def listed_files(root: Path) -> list[str]:
    """Give the names of what a fresh clone would hold, with the changes that are not committed yet."""
    command = ["git", "-c", f"safe.directory={root}", "-C", str(root), "ls-files", "-z"]
    command += ["--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise UsageError(
            found=f"git cannot list {shown(root)}: {done.stderr.decode(errors='replace').strip()[-200:]}",
            expected="a git checkout: what git ignores stays out of the job",
            remedy="run the command in a clone",
        )
    names = done.stdout.decode("utf-8", "surrogateescape").split("\0")
    return sorted(
        {name for name in names if name and (root / name).is_symlink() | (root / name).is_file()}
    )


def write_checkout(root: Path, target: BinaryIO, *, prefix: str) -> int:
    """Write the working tree below `prefix`, owned by root; give the number of files."""
    names = listed_files(root)
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as out:
        for name in names:
            out.add(root / name, f"{prefix}/{name}", recursive=False, filter=_owned_by_root)
    return len(names)


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry
