"""Which patches a source gets, in which order: the project's series first, then the user's files.

patches/sm90/series names one patch a line, relative to its folder; # starts a comment. A line that
ends in .patch is a unified diff; any other names a folder with an edit.yaml and our own code. An
edit that is test-only is left out unless it is asked for. Users put their own
unified diffs into patches/user/ (for a source other than deepinfer: patches/user/SOURCE/); they are
taken in the order of their names.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dih20.errors import LockError, PatchError
from dih20.paths import REPOSITORY, shown

if TYPE_CHECKING:
    from dih20.lock import Lock

ENGINE = "deepinfer"
TRAILERS = ("Reason", "Upstream", "Removable-when")

_TRAILER = re.compile(rf"^({'|'.join(TRAILERS)}):\s*(\S.*)$", re.IGNORECASE)
_SUFFIXES = (".patch", ".diff")
_NOT_PATCHES = {"README.md", ".gitkeep"}


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One patch: its name below patches/, its bytes, and what its trailers say.

    folder: where edit.yaml lies, for an edit by symbol; its text is then all its files in one.
    """

    name: str
    text: bytes
    origin: Literal["series", "user"]
    trailers: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None
    test_only: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text).hexdigest()


def patches_dir() -> Path:
    return REPOSITORY / "patches"


def load(
    source: str = ENGINE, folder: Path | None = None, *, test_only: bool = False
) -> list[Patch]:
    """Give the patches of a source in the order in which they apply."""
    root = folder or patches_dir()
    ours = _series(root, root / "sm90") if source == ENGINE else []
    ours = [patch for patch in ours if test_only or not patch.test_only]
    return ours + _users(root, root / "user" if source == ENGINE else root / "user" / source)


def load_for(lock: Lock, source: str, *, test_only: bool = False) -> list[Patch]:
    """Give the patches of a source; a user's folder that is named after no source is refused."""
    user = patches_dir() / "user"
    for folder in sorted(path for path in user.glob("*") if path.is_dir()):
        try:
            lock.source(folder.name)
        except LockError as error:
            raise _wrong(
                f"{shown(folder)}: {error.found}",
                f"a folder named after a source, {error.expected}",
            ) from error
    return load(source, test_only=test_only)


def unlisted(folder: Path | None = None) -> list[str]:
    """Give patch files and edits beside the series that it does not name: they are not applied."""
    root = folder or patches_dir()
    listed = {patch.name for patch in _series(root, root / "sm90")}
    beside = sorted(
        path
        for path in (root / "sm90").glob("*")
        if path.suffix in _SUFFIXES or (path / "edit.yaml").is_file()
    )
    return [name for path in beside if (name := str(path.relative_to(root))) not in listed]


def _series(root: Path, folder: Path) -> list[Patch]:
    series = folder / "series"
    patches: list[Patch] = []
    for number, line in enumerate(series.read_text().splitlines(), 1):
        name = line.split("#", 1)[0].strip()
        if not name:
            continue
        where = f"{shown(series)}:{number}"
        path = folder / name
        if folder.resolve() not in path.resolve().parents:
            raise _wrong(
                f"{where}: {name} lies outside its folder", "a name below the series' folder"
            )
        if path.suffix == ".patch":
            if not path.is_file():
                raise _wrong(f"{where}: there is no file {name}", f"a file {shown(path)}")
            patch = _read(root, path, "series")
        elif (path / "edit.yaml").is_file():
            patch = _read_edit(root, path)
        else:
            raise _wrong(
                f"{where}: {name} is neither a .patch file nor a folder with an edit.yaml",
                "a unified diff, or an edit by symbol (docs/patches.md)",
            )
        if any(patch.name == other.name for other in patches):
            raise _wrong(f"{where}: {name} stands there twice", "each patch once")
        patches.append(patch)
    return patches


def _users(root: Path, folder: Path) -> list[Patch]:
    if not folder.is_dir():
        return []
    patches = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name in _NOT_PATCHES or (path.is_dir() and folder.name == "user"):
            continue
        if path.suffix not in _SUFFIXES or not path.is_file():
            raise _wrong(
                f"{shown(path)} is not a patch",
                f"only files ending in {' or '.join(_SUFFIXES)} in {shown(folder)}",
            )
        patches.append(_read(root, path, "user"))
    return patches


def _read(root: Path, path: Path, origin: Literal["series", "user"]) -> Patch:
    text = path.read_bytes()
    return Patch(
        name=str(path.relative_to(root)), text=text, origin=origin, trailers=_trailers(text)
    )


def _read_edit(root: Path, folder: Path) -> Patch:
    """Read an edit's folder; its text is the names and bytes of its files in their order."""
    from dih20.patches.edits.model import read_edit

    edit = read_edit(folder)
    files = [folder / "edit.yaml", *sorted(folder.glob("*.py"))]
    text = b"".join(
        b"== %s %d\n%s" % (path.name.encode(), len(content), content)
        for path in files
        for content in [path.read_bytes()]
    )
    return Patch(
        name=str(folder.relative_to(root)),
        text=text,
        origin="series",
        trailers=edit.trailers,
        folder=folder,
        test_only=edit.test_only,
    )


def _trailers(text: bytes) -> dict[str, str]:
    """Read `Reason: ...` and its like from what stands before the first diff."""
    known = {trailer.lower(): trailer for trailer in TRAILERS}
    found = {}
    for line in text.decode("utf-8", errors="replace").splitlines():
        if line.startswith(("diff --git ", "--- ", "Index: ")):
            break
        if match := _TRAILER.match(line):
            found[known[match[1].lower()]] = match[2].strip()
    return found


def _wrong(found: str, expected: str) -> PatchError:
    return PatchError(
        found=found,
        expected=expected,
        remedy="mend it or move it away, then run `./inv patch --status`",
    )
