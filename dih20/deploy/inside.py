"""Look into the running container: its limits and mounts, then whether what was put there works."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.deploy.container import ContainerSpec
from dih20.deploy.readback import (
    Shortfall,
    inspect_shortfalls,
    limit_shortfalls,
    mount_shortfalls,
    require_none,
    shm_shortfalls,
)
from dih20.deploy.wanted import Wanted, WantedWheel
from dih20.errors import DeployError
from dih20.image.inside import nccl

if TYPE_CHECKING:
    from docker.models.containers import Container

_GB = 10**9
# Imports each module in a fresh interpreter and says how that went; argv: distribution and modules.
_IMPORTS = """
import importlib.metadata as metadata, json, subprocess, sys
found = []
for group in json.loads(sys.argv[1]):
    entry = {"name": group["name"], "version": None, "fault": ""}
    try:
        entry["version"] = metadata.version(group["name"])
    except metadata.PackageNotFoundError:
        entry["fault"] = "not installed"
    for module in group["imports"]:
        done = subprocess.run([sys.executable, "-c", "import " + module], capture_output=True, text=True)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["exit code %d" % done.returncode]
            entry["fault"] = module + ": " + lines[-1]
            break
    found.append(entry)
print(json.dumps(found))
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one check ended: ok, not run, not applicable, or failed with its reason in `note`."""

    check: str
    status: str
    note: str = ""


def read_back_created(ui: Console, container: Container, spec: ContainerSpec, host: str) -> None:
    """Compare the created container with what was asked, before anything is stopped or started."""
    with ui.step("read back", "settings of the created container"):
        container.reload()
        require_none(inspect_shortfalls(spec.config, container.attrs), host)


def read_back_inside(ui: Console, container: Container, wanted: Wanted, shm_bytes: int) -> None:
    """Compare what a process inside sees with what was asked; shm_bytes is the host's own /dev/shm."""
    host = wanted.host
    with ui.step("read back", "limits and mounts inside the container") as step:
        limits = output(container, ["cat", "/proc/1/limits"])
        required = shm_bytes if host.ipc == "host" else int((host.shm_size_gb or 0) * _GB)
        shortfalls: list[Shortfall] = [
            *limit_shortfalls(limits, memlock=host.memlock, stack=host.stack),
            *mount_shortfalls(
                output(container, ["cat", "/proc/1/mountinfo"]),
                {mount.container: mount.read_only for mount in host.mounts},
            ),
            *shm_shortfalls(output(container, ["df", "-Pk", "/dev/shm"]), required),
        ]
        require_none(shortfalls, host.name)
        step.note = f"memlock {host.memlock}, stack {host.stack}, /dev/shm {required >> 20} MiB"


def check_inside(
    ui: Console, container: Container, wanted: Wanted, *, gpus_are_free: bool = True
) -> list[Outcome]:
    """Run every check in the container and show its line; raise DeployError when one failed.

    While another container serves, its GPUs are left alone: the probe is not run.
    """
    outcomes: list[Outcome] = []
    probe = _probe if gpus_are_free else _probe_later
    for name, check in (("GPU probe", probe), ("NCCL", _nccl), ("imports", _imports)):
        with ui.step("check", name) as step:
            results = check(container, wanted)
            worst = next((r for r in results if r.status == "failed"), results[0])
            step.status, step.note = worst.status, "; ".join(r.note for r in results if r.note)
            outcomes += results
    failed = [f"{o.check}: {o.note}" for o in outcomes if o.status == "failed"]
    if failed:
        raise DeployError(
            found=f"{len(failed)} checks failed in the container on {wanted.host.name}: "
            + "; ".join(failed),
            expected="a container in which CUDA, NCCL and every installed wheel work",
            remedy="build image and wheels for this host again (`./inv build-image`, `./inv build-vendor`), then repeat",
        )
    return outcomes


def output(container: Container, argv: Sequence[str], *, timeout_hint: str = "") -> str:
    """Run a command in the container and give its stdout; DeployError carries what it said otherwise."""
    code, text, said = execute(container, argv)
    if code != 0:
        raise DeployError(
            found=f"in container {container.name}: `{' '.join(argv[:3])}` exited {code}: {said.strip() or text.strip()}",
            expected=timeout_hint or "exit code 0",
            remedy=f"try it with `docker exec {container.name} {argv[0]} ...` on the host",
        )
    return text


def execute(container: Container, argv: Sequence[str]) -> tuple[int, str, str]:
    """Give exit code, stdout and stderr of a command in the container."""
    done: Any = container.exec_run(list(argv), demux=True)
    out, err = done.output
    return (
        int(done.exit_code),
        (out or b"").decode("utf-8", "backslashreplace"),
        (err or b"").decode("utf-8", "backslashreplace"),
    )


def _imports(container: Container, wanted: Wanted) -> list[Outcome]:
    if not wanted.wheels:
        return [Outcome(check="imports", status="not applicable", note="no wheels in the set")]
    groups = [{"name": w.name, "imports": list(w.imports)} for w in wanted.wheels]
    text = output(container, ["python3", "-c", _IMPORTS, json.dumps(groups)])
    by_name = {entry["name"]: entry for entry in json.loads(text)}
    return [_import_outcome(wheel, by_name[wheel.name], wanted) for wheel in wanted.wheels]


def _import_outcome(wheel: WantedWheel, entry: dict[str, Any], wanted: Wanted) -> Outcome:
    label, fault = f"import {wheel.name}", str(entry["fault"])
    if entry["version"] is None:
        return Outcome(check=label, status="failed", note=f"{wheel.name} is not installed")
    if entry["version"] != wheel.version:
        note = f"{wheel.name} is {entry['version']}, not {wheel.version}"
        return Outcome(check=label, status="failed", note=note)
    if not fault:
        return Outcome(check=label, status="ok", note=f"{wheel.name} {wheel.version}")
    if wanted.image.torch == "none" and "No module named 'torch'" in fault:
        return Outcome(check=label, status="not run", note=f"{wheel.name}: no torch in this image")
    if not wanted.host.gpus and "libcuda.so.1" in fault:
        return Outcome(check=label, status="not run", note=f"{wheel.name}: no GPU")
    return Outcome(check=label, status="failed", note=fault)


def _probe(container: Container, wanted: Wanted) -> list[Outcome]:
    if not wanted.host.gpus:
        return [Outcome(check="GPU probe", status="not run", note="no GPU")]
    if not any(wheel.name in ("h20_probe", "h20-probe") for wheel in wanted.wheels):
        note = "h20_probe is not in the wheel set; run `./inv build-vendor --only h20_probe`"
        return [Outcome(check="GPU probe", status="failed", note=note)]
    argv = ["python3", "-m", "h20_probe", "--expect-gpus", str(wanted.host.gpus)]
    if wanted.nccl and wanted.image.torch != "none":
        argv += ["--expect-nccl", wanted.nccl]
    code, text, said = execute(container, argv)
    if code != 0:
        note = said.strip() or text.strip() or f"h20_probe exited {code} and said nothing"
        return [Outcome(check="GPU probe", status="failed", note=note)]
    driver = json.loads(text).get("driver", {})
    note = f"CUDA initialises on {len(driver.get('devices', []))} GPUs"
    return [Outcome(check="GPU probe", status="ok", note=note)]


def _probe_later(container: Container, wanted: Wanted) -> list[Outcome]:
    note = f"{wanted.host.container} serves on these GPUs" if wanted.host.gpus else "no GPU"
    return [Outcome(check="GPU probe", status="not run", note=note)]


def _nccl(container: Container, wanted: Wanted) -> list[Outcome]:
    if wanted.image.torch == "none":
        return [Outcome(check="NCCL", status="not applicable", note="no torch in this image")]
    script = Path(nccl.__file__).read_text()
    code, text, said = execute(
        container, ["python3", "-c", script, "--expect", wanted.nccl, "--json"]
    )
    try:
        verdicts = json.loads(text)["verdicts"]
    except (ValueError, KeyError):
        note = f"the check exited {code}: {said.strip() or text.strip()}"
        return [Outcome(check="NCCL", status="failed", note=note)]
    return [
        Outcome(check=f"NCCL {check}", status=status, note=f"{check} {note}")
        for check, status, note in verdicts
    ]
