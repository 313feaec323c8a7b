"""Lay out a step's inputs on a host, for a build in the host's own engine.

Every file goes once, into work_dir/build-inputs/files under its hash; a step's folder there is made
of links to them and removed after the step.
"""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from dih20.console import Console
from dih20.image.inputs import Input

if TYPE_CHECKING:
    from dih20.hosts.ssh import SshRunner

# One command for all links, so that a step of fifty files is not fifty round trips: pairs of arguments.
_LINK = """
while [ "$#" -gt 0 ]; do
    mkdir -p -- "$(dirname -- "$2")"
    ln -- "$1" "$2" 2>/dev/null || cp -- "$1" "$2"
    chmod a+r -- "$2"
    shift 2
done
"""


class HostStaging:
    """Where the bind mounts of a host's engine come from.

    Example:
        with connect(config) as host:
            build_image(ui, host.docker(), image, lock, stage=HostStaging(ui, host).folder)
    """

    def __init__(self, ui: Console, host: SshRunner) -> None:
        self._ui, self._host = ui, host
        self._root = PurePosixPath(host.host.work_dir) / "build-inputs"

    @contextmanager
    def folder(self, files: tuple[Input, ...]) -> Iterator[PurePosixPath]:
        """Give the path, on the host, of a folder with these files."""
        self._send(files)
        folder = self._root / f"step-{secrets.token_hex(4)}"
        pairs = [
            part for entry in files for part in (str(self._place(entry)), str(folder / entry.name))
        ]
        try:
            self._host.run(["sh", "-euc", _LINK, "sh", *pairs])
            yield folder
        finally:
            self._host.run(["rm", "-rf", "--", str(folder)], check=False)

    def _place(self, entry: Input) -> PurePosixPath:
        return self._root / "files" / entry.sha256

    def _send(self, files: tuple[Input, ...]) -> None:
        script = 'cd "$1" 2>/dev/null && ls || true'
        there = set(
            self._host.run(["sh", "-c", script, "sh", str(self._root / "files")]).text.split()
        )
        missing = {entry.sha256: entry for entry in files if entry.sha256 not in there}
        if not missing:
            return
        with self._ui.step("transfer", f"{len(missing)} inputs") as line:
            sent = 0
            for entry in missing.values():
                sent += self._put(entry)
            line.note = f"{sent / 1e6:.1f} MB; {len(files) - len(missing)} were on the host"

    def _put(self, entry: Input) -> int:
        source = entry.source()
        if source is not None:
            self._host.put(source, str(self._place(entry)), self._ui, sha256=entry.sha256)
            return source.stat().st_size
        assert entry.text is not None, f"{entry.name} has neither file nor text"
        with tempfile.TemporaryDirectory(prefix="dih20-") as folder:
            written = Path(folder) / hashlib.sha256(entry.name.encode()).hexdigest()[:12]
            written.write_text(entry.text)
            self._host.put(written, str(self._place(entry)), self._ui, sha256=entry.sha256)
            return written.stat().st_size
