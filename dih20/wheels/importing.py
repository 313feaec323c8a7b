"""Import a wheel inside the image it is for, and judge what stood in the way."""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.errors import WheelError
from dih20.paths import shown
from dih20.wheels.container import Job, run_job
from dih20.wheels.driver_stub import SONAME, refuse_stub_folders
from dih20.wheels.image_facts import PLAIN_PATH, ImageFacts
from dih20.wheels.procedure import INSIDE
from dih20.wheels.verdicts import Verdict, fail, not_applicable, ok

if TYPE_CHECKING:
    import docker

CHECK = "import"
_SCRIPT = """set -e
if [ -f /di/job/driver_stub.c ] && ! ldconfig -p | grep -q libcuda.so.1; then
    mkdir -p /build/driver
    gcc -w -shared -fPIC -Wl,-soname,libcuda.so.1 -o /build/driver/libcuda.so.1 /di/job/driver_stub.c
    export LD_LIBRARY_PATH="/build/driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    touch /di/out/without-driver
fi
python3 /di/inside/import_wheel.py /di/wheel "$@" >/di/out/imports.json
"""


def import_in_image(
    client: docker.DockerClient,
    facts: ImageFacts,
    wheel: Path,
    names: tuple[str, ...],
    *,
    built_with: str,
    log: Path,
    driver_stub: str | None = None,
    toolkit: Path | None = None,
) -> Verdict:
    """Import each name in a container of the image, the wheel in front of everything else.

    Args:
        built_with: the torch build that the wheel was compiled against.
        driver_stub: C source that stands in for a driver this machine does not have; said so in the verdict.
    """
    if not names:
        return not_applicable(CHECK, "the recipe names nothing to import")
    refuse_stub_folders(facts.run_time, f"image {facts.image_id[:19]}")
    with tempfile.TemporaryDirectory(prefix="di-import-") as scratch:
        folders = {name: Path(scratch) / name for name in ("wheel", "job", "out")}
        for folder in folders.values():
            folder.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folders["wheel"])
        if driver_stub:
            (folders["job"] / "driver_stub.c").write_text(driver_stub)
        read_only = {"/di/inside": INSIDE, "/di/wheel": folders["wheel"], "/di/job": folders["job"]}
        if toolkit:
            read_only["/usr/local/cuda"] = toolkit
        job = Job(
            argv=("sh", "-c", _SCRIPT, "import", *names),
            environment={
                "PATH": PLAIN_PATH,
                "LANG": "C.UTF-8",
                "HOME": "/tmp",
                **facts.environment,
                **facts.run_time,
            },
            read_only=read_only,
            writable={"/di/out": folders["out"]},
            timeout_s=600,
        )
        outcome = run_job(client, facts.image_id, job, log=log)
        answer = folders["out"] / "imports.json"
        if outcome.exit_code != 0 or not answer.is_file():
            raise WheelError(
                found=f"the import test of {wheel.name} did not run (exit {outcome.exit_code})",
                expected="python3 in the image, and the wheel unpacked",
                remedy=f"see {shown(log)}",
            )
        entries: list[dict[str, Any]] = json.loads(answer.read_text())
        without_driver = (folders["out"] / "without-driver").exists()
    return judge(entries, built_with=built_with, found=facts.torch, without_driver=without_driver)


def judge(
    entries: list[dict[str, Any]], *, built_with: str, found: str, without_driver: bool = False
) -> Verdict:
    """Turn what import_wheel.py reported into a verdict that names library and symbol."""
    failed = [entry for entry in entries if not entry["ok"]]
    if not failed:
        note = (
            f" ({SONAME} replaced by the link-time stub: no driver here)" if without_driver else ""
        )
        return ok(CHECK, ", ".join(f"{e['name']} {e['seconds']} s" for e in entries) + note)
    return fail(
        CHECK,
        "; ".join(_reason(entry, built_with, found) for entry in failed),
        expected=f"an import without error inside the image (torch there: {found})",
        remedy="build the wheel in that image: ./inv build-vendor; wheels do not move between torch builds",
    )


def _reason(entry: dict[str, Any], built_with: str, found: str) -> str:
    if symbol := entry.get("symbol"):
        library = Path(entry["library"]).name
        return f"{library} lacks {symbol}; built with torch {built_with}, found torch {found}"
    if missing := entry.get("missing_library"):
        return f"{entry['name']} needs {missing}, which the image does not have"
    return f"{entry['name']}: {entry['message']}"
