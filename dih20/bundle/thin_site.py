"""--thin-site: packages without what no run of the engine reads.

Left out: static libraries, type stubs, tests, the C++ sources of TileLang and TVM (the headers that kernels include
stay), tools of CUTLASS. Debug symbols of large libraries are stripped by binutils' strip.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from dih20.bundle.entries import Entry, of_bytes
from dih20.errors import UsageError

_UNREAD = re.compile(
    r"\.a$|\.pyi$|/tests/|^site/tilelang/3rdparty/(tvm/src|cutlass/tools|composable_kernel)/"
    r"|^site/tilelang/src/(?!tl_templates/)"
)
_LARGE = 1 << 20
_WORTH = 0.95  # a library stays as it is when stripping takes less


def thin_site(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Give what is left, stripped where that saves something."""
    if shutil.which("strip") is None:
        raise UsageError(
            found="no strip on this machine",
            expected="binutils, for --thin-site",
            remedy="install binutils, or leave --thin-site out",
        )
    for entry in entries:
        if _UNREAD.search(entry.name):
            continue
        is_library = ".so" in Path(entry.name).name and entry.size > _LARGE
        yield _stripped(entry) if is_library else entry


def _stripped(entry: Entry) -> Entry:
    with tempfile.TemporaryDirectory(prefix="dih20-strip-") as scratch:
        path = Path(scratch, "library")
        with entry.open() as content:
            path.write_bytes(content.read())
        done = subprocess.run(
            ["strip", "--strip-unneeded", str(path)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0 or path.stat().st_size > _WORTH * entry.size:
            return entry
        return replace(of_bytes(entry.name, path.read_bytes()), executable=entry.executable)
