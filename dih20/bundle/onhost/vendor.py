"""The vendors' packages on the host: a wheel of the bundle where its tags fit, else one built here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dih20.bundle.onhost.facts import HostFacts, numbers
from dih20.bundle.onhost.layout import Layout
from dih20.bundle.onhost.wheels import key_when_built
from dih20.errors import WheelError

_BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"


def fitting(manifest: Mapping[str, Any], name: str, facts: HostFacts) -> dict[str, Any] | None:
    """Give the bundle's wheel of a package that was built for this torch; None when there is none.

    The C++ interface of torch changes with its minor version, so release and CUDA must agree; and the
    wheel must not ask for a newer C library than this host has.
    """
    for wheel in manifest["vendor_wheels"]:
        release, _, cuda = wheel["torch"].partition("+cu")
        same_cuda = not cuda or cuda == facts.torch_cuda.replace(".", "")
        same_torch = same_cuda and numbers(release)[:2] == numbers(facts.torch)[:2]
        if wheel["name"] == name and same_torch and numbers(wheel["glibc"]) <= numbers(facts.glibc):
            found: dict[str, Any] = wheel
            return found
    return None


def must_build(manifest: Mapping[str, Any], facts: HostFacts) -> list[str]:
    """Name the packages that have to be compiled here."""
    names = [build["name"] for build in manifest["builds"]]
    return [name for name in names if fitting(manifest, name, facts) is None]


def key_of(manifest: Mapping[str, Any], name: str, facts: HostFacts) -> str:
    """Give what an installed package depends on, so that a second run knows whether it stands."""
    wheel = fitting(manifest, name, facts)
    if wheel is None:
        return key_when_built(manifest, facts)
    return f"{manifest['identity']} {facts.python} {facts.torch} {wheel['sha256']}"


def install(layout: Layout, manifest: Mapping[str, Any], build: Mapping[str, Any], facts: HostFacts, jobs: int) -> str:  # fmt: skip
    """Put one package where Python finds it, and say where it came from."""
    name = build["name"]
    if wheel := fitting(manifest, name, facts):
        given = wheel.get("wheel")
        folder = (
            _unzipped(Path(given), layout.root / "work" / "given" / name)
            if given
            else layout.root / wheel["folder"]
        )
        origin = f"wheel {'given' if given else 'of the bundle'}, torch {wheel['torch']}"
    else:
        built, seconds = _built(layout, build, facts, jobs)
        folder = _unzipped(built, built.parent / "unzipped")
        origin = f"built here in {seconds:.0f} s"
    if name == "deepinfer":
        _engine(layout, folder)
    else:
        _packages(folder, layout.vendor_site, build["distribution"])
    return origin


def _unzipped(wheel: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def _packages(folder: Path, into: Path, distribution: str) -> None:
    """Put packages in place of what an earlier run left of them."""
    into.mkdir(parents=True, exist_ok=True)
    for old in into.glob(f"{distribution.replace('-', '_')}-*.dist-info"):
        shutil.rmtree(old)
    for top in sorted(folder.iterdir()):
        shutil.rmtree(into / top.name, ignore_errors=True)
        if top.is_dir():
            shutil.copytree(top, into / top.name)
        else:
            shutil.copy2(top, into / top.name)


def _engine(layout: Layout, folder: Path) -> None:
    """Put the engine together: the patched Python of the bundle, and the wheel's extension."""
    draft = layout.engine.with_name(".engine")
    for old in (layout.engine, draft):
        shutil.rmtree(old, ignore_errors=True)
    for package in ("deepinfer", "deep_cluster"):
        shutil.copytree(layout.sources / "deepinfer" / package, draft / package)
    extensions = sorted(folder.rglob("_C*.so"))
    if not extensions:
        raise WheelError(
            found=f"no extension _C in {folder}",
            expected="deepinfer/_C*.so, which schedules requests",
            remedy="make the bundle again without this wheel; it is then built here",
        )
    for extension in extensions:
        target = draft / extension.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(extension, target)
    for info in folder.glob("*.dist-info"):
        shutil.copytree(info, draft / info.name)
    draft.rename(layout.engine)


def _built(layout: Layout, build: Mapping[str, Any], facts: HostFacts, jobs: int) -> tuple[Path, float]:  # fmt: skip
    name = build["name"]
    work, out, log = (
        layout.root / "work" / name,
        layout.root / "work" / "wheels" / name,
        layout.log(f"build-{name}"),
    )
    for folder in (work, out):
        shutil.rmtree(folder, ignore_errors=True)
    out.mkdir(parents=True)
    shutil.copytree(layout.sources / name, work)
    environment = build_environment(layout, build, facts, jobs)
    started = time.monotonic()
    with log.open("w") as file:
        file.write(f"== {name}: MAX_JOBS={environment['MAX_JOBS']}, CPATH={environment['CPATH']}\n")
        file.flush()
        try:
            done = subprocess.run(
                [sys.executable, "-c", _BUILD, str(out)], cwd=work, env=environment, check=False,
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, timeout=build["timeout_minutes"] * 60,
            )  # fmt: skip
        except subprocess.TimeoutExpired as fault:
            raise _failed(
                name, log, f"not done after {build['timeout_minutes']} minutes"
            ) from fault
    wheels = sorted(out.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise _failed(name, log, f"exit code {done.returncode}, {len(wheels)} wheels")
    shutil.rmtree(work)
    return wheels[0], time.monotonic() - started


def build_environment(layout: Layout, build: Mapping[str, Any], facts: HostFacts, jobs: int) -> dict[str, str]:  # fmt: skip
    """Give the environment of a build: headers and tools of the bundle, torch and CUDA of the host."""
    home, nccl = Path(facts.cuda_home), layout.nccl / "nvidia" / "nccl"
    headers = [layout.root / "headers" / "include", home / "include" / "cccl"]
    libraries = [_links(layout), home / "lib64", home / "lib64" / "stubs"]
    own = {name: value.replace("{nccl}", str(nccl)) for name, value in build["environment"].items()}
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(layout.root / "site-build" / "bin"), str(home / "bin"), os.environ.get("PATH", "")]),
        "CUDA_HOME": str(home),
        "CPATH": os.pathsep.join(map(str, headers)),
        "LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
        "PYTHONPATH": os.pathsep.join([str(layout.nccl), str(layout.root / "site-build")]),
        "MAX_JOBS": str(jobs or jobs_for(build["memory_per_job_gb"])),
        **own,
        "VIRTUAL_ENV": str(layout.root),  # the engine's setup insists that it is set, and does not use it
    }  # fmt: skip


def jobs_for(memory_per_job_gb: float) -> int:
    """Give how many compilers fit: by cores and by memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, int(memory / (memory_per_job_gb * 1e9))))


def _links(layout: Layout) -> Path:
    """Give a folder with libNAME.so for each libNAME.so.N of the host's NVIDIA packages: wheels hold no links."""
    folder = layout.root / "work" / "links"
    folder.mkdir(parents=True, exist_ok=True)
    for place in map(Path, sys.path):
        for library in sorted(place.glob("nvidia/*/lib/lib*.so.*")):
            link = folder / f"{library.name.split('.so.')[0]}.so"
            if "nccl" not in library.name and not link.is_symlink():
                link.symlink_to(library)
    return folder


def _failed(name: str, log: Path, why: str) -> WheelError:
    lines = log.read_text(errors="replace").splitlines()
    errors = [line for line in lines if "error:" in line.lower() or "Error:" in line]
    last = (errors or lines or ["an empty log"])[0].strip()
    return WheelError(
        found=f"{name} was not built: {why}; first error: {last[:300]}",
        expected="one wheel",
        remedy=f"see {log}; fewer jobs with --max-jobs when the compiler was killed",
    )
