"""The command line of run.sh."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dih20.bundle.onhost import caches, environment, facts, installing, reading, starting, wheels
from dih20.bundle.onhost.layout import Layout
from dih20.bundle.onhost.saying import say, step
from dih20.errors import INTERRUPTED, ToolError, UsageError

_TEXT = """
sh run.sh --into FOLDER [engine-check's arguments]     install what is missing, then check the engine
sh run.sh --into FOLDER --no-check                     install only
sh run.sh verify                                       only look at parts and host; changes nothing
sh run.sh --into FOLDER cache export DIR               compiled kernels of this host into DIR
sh run.sh --into FOLDER cache import DIR               compiled kernels of an equal host out of DIR
sh run.sh --into FOLDER wheels export DIR              vendor wheels that were built here into DIR

PYTHON=/path/to/python3 names the Python that has torch. A second run takes up where the first one stopped.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run; give the exit code. An error is printed in its three parts."""
    try:
        return run(argv)
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; the same command takes it up again", file=sys.stderr)
        return INTERRUPTED


def run(argv: Sequence[str] | None) -> int:
    given, rest = _parser().parse_known_args(argv)
    folder = Path(given.bundle).resolve()
    manifest = reading.read_manifest(folder)
    if rest[:1] == ["verify"]:
        return installing.verify(folder, manifest)
    if not given.into:
        raise UsageError(
            found="no --into", expected="the folder to install into", remedy=_TEXT.strip()
        )
    layout = Layout(Path(given.into).expanduser().resolve())
    if rest[:1] == ["cache"]:
        return _cache(layout, manifest, rest[1:])
    if rest[:1] == ["wheels"]:
        return _wheels(layout, manifest, rest[1:])
    if rest and not rest[0].startswith("-"):
        raise UsageError(
            found=f"{rest[0]!r}", expected="verify, cache, wheels, or options", remedy=_TEXT.strip()
        )
    if given.wheels:
        # first: they are nearer to this host than what came along
        given_rows = wheels.read(Path(given.wheels).expanduser().resolve(), manifest)
        manifest = {**manifest, "vendor_wheels": [*given_rows, *manifest["vendor_wheels"]]}
    installed = installing.install(folder, manifest, layout, jobs=given.max_jobs)
    folders = caches.places(installed.environment)
    if given.caches:
        with step("caches") as notes:
            place = Path(given.caches).expanduser().resolve()
            key = caches.key_of(manifest, installed.facts, installed.environment)
            notes.append(_told(caches.take(folders, place, key)))
    say(f"compiled kernels: {caches.counted(folders)}")
    if not given.no_check:
        starting.engine_check(layout, installed, rest)
    say(f"installed; a shell takes it with: . {layout.root}/env.sh")
    return 0


def _cache(layout: Layout, manifest: dict[str, Any], words: Sequence[str]) -> int:
    if len(words) != 2 or words[0] not in ("export", "import"):
        raise UsageError(
            found=f"cache {' '.join(words)}",
            expected="cache export DIR, or cache import DIR",
            remedy="correct the command line",
        )
    _require_own(layout, manifest)
    place = Path(words[1]).expanduser().resolve()
    found = facts.gather(layout.root)
    whole = environment.whole(layout, found.cuda_home)
    folders, key = caches.places(whole), caches.key_of(manifest, found, whole)
    if words[0] == "export":
        done = caches.export(folders, place, key)
        say(f"{done['files']} files, {done['size_bytes'] / 1e6:.1f} MB, in {place}")
    else:
        say(_told(caches.take(folders, place, key)))
    return 0


def _told(counts: dict[str, int]) -> str:
    return f"{counts['added']} files added; {counts['same']} were here, {counts['kept']} stay that differ"


def _wheels(layout: Layout, manifest: dict[str, Any], words: Sequence[str]) -> int:
    if len(words) != 2 or words[0] != "export":
        raise UsageError(
            found=f"wheels {' '.join(words)}",
            expected="wheels export DIR; they are taken with --wheels DIR",
            remedy="correct the command line",
        )
    _require_own(layout, manifest)
    place = Path(words[1]).expanduser().resolve()
    rows = wheels.export(layout, manifest, facts.gather(layout.root), place)
    say(f"{', '.join(row['file'] for row in rows)} in {place}")
    return 0


def _require_own(layout: Layout, manifest: dict[str, Any]) -> None:
    identity = layout.require()
    if identity != manifest["identity"]:
        raise UsageError(
            found=f"{layout.root} holds bundle {identity[:12]}",
            expected=f"this one, {str(manifest['identity'])[:12]}",
            remedy="use the run.sh that it was installed with",
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="run.sh", usage=_TEXT, add_help=True, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--bundle", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--into", default="", help="folder for everything; nothing else is changed")
    parser.add_argument("--max-jobs", type=int, default=0, help="compilers at once; by cores and memory without it")  # fmt: skip
    parser.add_argument(
        "--wheels",
        default="",
        help="folder of `wheels export`: vendor wheels to take where they fit",
    )
    parser.add_argument(
        "--caches", default="", help="folder of `cache export`: compiled kernels to take first"
    )
    parser.add_argument("--no-check", action="store_true", help="install only")
    return parser
