"""Give an image its normal form on the host whose engine holds it: its layers do not leave the host.

A container of the image itself reads the layers' folders and writes the archive, and the host's
docker command loads it. Only what to write and what was written cross the connection.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.errors import ImageError
from dih20.hosts.docker_cli import docker_environment, docker_path
from dih20.image.archive.normal_archive import NormalArchive
from dih20.image.archive.normal_program import program, wanted_text

if TYPE_CHECKING:
    from dih20.console import Console
    from dih20.hosts.ssh import SshRunner

_LIMIT_S = 3600.0
_SEEN = "/mnt/layers"
# $1: docker, $2: the image, $3: a folder with program and wish; the rest: options of docker run.
# A pipeline gives its last exit code, so the container's is kept in a file.
_SCRIPT = """
docker=$1 image=$2 folder=$3
shift 3
{ "$docker" run --rm --interactive --network none --log-driver none --cap-add SYS_ADMIN --user 0 \\
    --security-opt label=disable --entrypoint python3 --volume "$folder:/mnt/program:ro" "$@" "$image" \\
    -I /mnt/program/normal.zip /mnt/program/wanted.json 2>"$folder/report" </dev/null
  echo $? >"$folder/code"; } | "$docker" load --quiet >/dev/null || echo "docker load exited $?" >>"$folder/report"
cat -- "$folder/report"
exit "$(cat -- "$folder/code")"
"""


class HostNormal:
    """Writes archives on one host."""

    def __init__(self, ui: Console, host: SshRunner) -> None:
        self._ui, self._host = ui, host

    def load(self, archive: NormalArchive, image: str, paths: Mapping[str, str]) -> None:
        """Write and load the archive there, reading layers from `paths` (diff id -> folder on the host)."""
        seen = {diff_id: f"{_SEEN}/{number}" for number, diff_id in enumerate(paths)}
        mounts = [
            option
            for diff_id, path in paths.items()
            for option in ("--volume", f"{path}:{seen[diff_id]}:ro")
        ]
        docker, env = docker_path(self._host), docker_environment(self._host.host)
        folder = self._host.run(
            ["mktemp", "-d", "-p", self._work(), "normal-XXXXXXXX"]
        ).text.strip()
        try:
            self._send(folder, wanted_text(archive, seen))
            script = ["sh", "-uc", _SCRIPT, "sh", docker, image, folder, *mounts]
            done = self._host.run(script, env=env, timeout_s=_LIMIT_S, check=False)
        finally:
            self._host.run(["rm", "-rf", "--", folder], check=False)
        self._read(archive, done.text, done.exit_code)

    def _work(self) -> str:
        work = self._host.host.work_dir
        self._host.run(["mkdir", "-p", "--", work])
        return work

    def _send(self, folder: str, wanted: str) -> None:
        with tempfile.TemporaryDirectory(prefix="dih20-") as local:
            for name, content in (("normal.zip", program()), ("wanted.json", wanted.encode())):
                path = Path(local) / name
                path.write_bytes(content)
                self._host.put(path, f"{folder}/{name}", self._ui)

    def _read(self, archive: NormalArchive, said: str, code: int) -> None:
        lines = said.strip().splitlines()
        try:
            report: dict[str, Any] = json.loads(lines[-1])
        except (IndexError, ValueError):
            report = {}
        if code != 0 or not report:
            raise ImageError(
                found=f"the container that writes the image's normal form on {self._host.name} exited {code}:\n"
                + "\n".join(f"  {line}" for line in lines[-8:]),
                expected="an archive, loaded into the host's engine",
                remedy="look at the engine's log and free disk space on the host, then run the command again",
            )
        archive.normal = dict(report["normal"])
        archive.image_id, archive.diff_ids = report["image_id"], tuple(report["diff_ids"])
        archive.written_bytes, archive.left_out = report["written_bytes"], report["left_out"]
