"""Pin upstream trees: sdists by hash, git trees by commit, paths by what is found there."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from pathlib import PurePosixPath as PosixPath

from packaging.requirements import Requirement
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename

from dih20.config.image import ImageConfig, Source
from dih20.errors import LockError
from dih20.index.shelf import Indexes
from dih20.index.simple import IndexFile
from dih20.lock.files import LockedFile, LockedSource
from dih20.lock.tree_version import check_submodules, tree_version
from dih20.paths import REPOSITORY


def pin_source(name: str, source: Source, indexes: Indexes) -> LockedSource:
    """Give the pin of one source."""
    if source.sdist:
        file = pin_sdist(source.sdist, indexes)
        return LockedSource(name=name, kind="sdist", version=file.version, file=file)
    if source.git:
        assert source.commit, "the model lets no git source without a commit through"
        return LockedSource(
            name=name, kind="git", version=f"0+g{source.commit[:12]}", commit=source.commit
        )
    folder = source_folder(source.path or "")
    if not folder.is_dir():
        raise LockError(
            found=f"source {name}: no folder {source.path}",
            expected="your checkout, as sources: in configs/images names it",
            remedy="correct path: there, then run the command again",
        )
    check_submodules(folder)
    return LockedSource(name=name, kind="path", version=tree_version(folder))


def pin_sdist(wanted: str, indexes: Indexes) -> LockedFile:
    """Give the one source archive that a requirement NAME==VERSION names."""
    file, version = find_sdist(wanted, indexes)
    assert file.sha256, f"{file.filename} was chosen without a hash"
    return LockedFile(
        name=canonicalize_name(Requirement(wanted).name),
        version=version,
        filename=file.filename,
        sha256=file.sha256,
        size_bytes=indexes.size(file),
        kind="sdist",
    )


def find_sdist(wanted: str, indexes: Indexes) -> tuple[IndexFile, str]:
    """Give the listed archive and its version."""
    requirement = Requirement(wanted)
    fitting = []
    for file in indexes.files(requirement.name):
        try:
            _, version = parse_sdist_filename(file.filename)
        except InvalidSdistFilename:
            continue
        if file.sha256 and requirement.specifier.contains(version, prereleases=True):
            fitting.append((version, file))
    if not fitting:
        raise LockError(
            found=f"no index in force has a source archive for {wanted} (asked: {indexes.shown})",
            expected="a .tar.gz with a sha256 on its project page",
            remedy="change the source in configs/images, or name an index that has it in configs/mirrors.yaml",
        )
    version, file = max(fitting, key=lambda pair: pair[0])
    return file, str(version)


def upstream_requirements(image: ImageConfig, indexes: Indexes) -> list[str]:
    """Give what upstream's requirement files ask for, less what the image configuration leaves out.

    Only the named files are read; `-r` lines in them would bring development tools and are skipped.
    """
    wanted = image.requirements
    source = image.sources[wanted.source]
    without = {canonicalize_name(name) for name in wanted.without}
    lines = [
        line for name in wanted.files for line in _read_text(source, name, indexes).splitlines()
    ]
    texts = [line.split("#", 1)[0].strip() for line in lines]
    requirements = [Requirement(text) for text in texts if text and not text.startswith("-")]
    kept = [str(r) for r in requirements if canonicalize_name(r.name) not in without]
    return [*kept, *wanted.also]


def _read_text(source: Source, name: str, indexes: Indexes) -> str:
    if source.sdist:
        file, _ = find_sdist(source.sdist, indexes)
        with tarfile.open(fileobj=io.BytesIO(indexes.content(file)), mode="r:*") as archive:
            for member in archive.getmembers():
                if PosixPath(member.name).parts[1:] == PosixPath(name).parts:
                    handle = archive.extractfile(member)
                    if handle:
                        return handle.read().decode("utf-8")
        raise _no_file(name, file.filename)
    folder = source_folder(source.path or source.git or "")
    if source.commit:
        command = ["git", "-C", str(folder), "show", f"{source.commit}:{name}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise _no_file(
                name, f"{source.git} at {source.commit[:12]} ({done.stderr.strip()[-200:]})"
            )
        return done.stdout
    if not (folder / name).is_file():
        raise _no_file(name, str(source.path))
    return (folder / name).read_text(encoding="utf-8")


def source_folder(text: str) -> Path:
    """Give the folder that a path source names; relative ones start at the repository."""
    folder = Path(text).expanduser()
    return folder if folder.is_absolute() else REPOSITORY / folder


def _no_file(name: str, where: str) -> LockError:
    return LockError(
        found=f"no {name} in {where}",
        expected="upstream's requirement file, named under requirements: files: in configs/images",
        remedy="correct files: there, then run the command again",
    )
