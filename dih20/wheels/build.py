"""Build one wheel in a container of the image, and put it into the store once it is judged."""

from __future__ import annotations

import datetime
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.errors import CompilerKilled, WheelError
from dih20.file_guard import only_holder
from dih20.lock import Lock
from dih20.paths import build_dir, shown
from dih20.provenance.record import Record
from dih20.provenance.statement import wheel_statement
from dih20.wheels import driver_stub, preflight, sources, toolkit, tools
from dih20.wheels.build_environment import environment_of
from dih20.wheels.container import Job, Outcome, run_job
from dih20.wheels.failures import as_error, read_failure
from dih20.wheels.image_facts import ImageFacts
from dih20.wheels.importing import import_in_image
from dih20.wheels.inspector import inspect_wheel, raise_for
from dih20.wheels.jobs import Jobs, bounded
from dih20.wheels.plan import Wanted, nvcc_of
from dih20.wheels.procedure import INSIDE, SCRIPTS
from dih20.wheels.provenance import members, record_of
from dih20.wheels.repack import repack
from dih20.wheels.store import Store, StoredWheel, sha256_of
from dih20.wheels.verdicts import Verdict
from dih20.wheels.workspace import fresh

if TYPE_CHECKING:
    import docker

CUDA = toolkit.IN_CONTAINER
DRIVER = driver_stub.SONAME


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the user allows a build to use; None means what the engine has."""

    jobs: int | None = None
    memory_gb: float | None = None


@dataclass(kw_only=True)
class Builder:
    """Builds wheels for one image, from one lock, into one store; work folders and logs lie in `scratch`.

    Example:
        wheel = Builder(ui=ui, client=client, facts=facts, lock=lock, store=Store()).build(wanted)
    """

    ui: Console
    client: docker.DockerClient
    facts: ImageFacts
    lock: Lock
    store: Store
    limits: Limits = field(default_factory=Limits)
    scratch: Path = field(default_factory=build_dir)

    def build(self, wanted: Wanted) -> StoredWheel:
        """Build, repack, inspect, import and store; or give what another build stored meanwhile."""
        name = f"{wanted.recipe.name}-{wanted.parts.identity[:12]}"
        work = self.scratch / "wheel-builds" / name
        with only_holder(work.with_name(f"{name}.guard"), self.ui.line):
            log = self.scratch / "logs" / f"wheel-{name}.log"
            return self.store.find(wanted.parts.identity) or self._build(wanted, work, log)

    def _build(self, wanted: Wanted, folder: Path, log: Path) -> StoredWheel:
        """Build with one retry, with fewer jobs, after a kill."""
        recipe = wanted.recipe
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        if recipe.build.nvcc:
            toolkit.refuse_old(nvcc_of(self.lock, self.facts), f"image {self.facts.image_id[:19]}")
        tree = sources.materialise(self.ui, self.lock, recipe.source) if recipe.source else Path()
        for line in wanted.nccl_lines:
            self.ui.line(f"  {line}", style="dim")
        jobs = self._jobs(wanted)
        started = time.monotonic()
        with fresh(folder) as work:
            try:
                outcome = self._compile(wanted, tree, work, jobs, log)
            except CompilerKilled as killed:
                if jobs.count == 1:
                    raise
                jobs = jobs.halved()
                self.ui.warn(f"{killed.found.splitlines()[0]}; once more with {jobs.count} job(s)")
                outcome = self._compile(wanted, tree, work, jobs, log)
            built = self._one_wheel(work / "out", recipe.name, log)
            (work / "final").mkdir()
            record = record_of(self.lock, self.facts, wanted)
            wheel = repack(
                built,
                work / "final",
                local_version=wanted.described.marker,
                beside=lambda version: members(record, version),
            )
            verdicts = self._judge(wanted, wheel, log)
            raise_for(recipe, wheel, verdicts)
            run = self._run(jobs, outcome, work / "out", time.monotonic() - started)
            return self.store.add(
                wheel,
                name=recipe.name,
                parts=wanted.parts,
                verdicts=[verdict.as_dict() for verdict in verdicts],
                build=run,
                statement=self._statement(record, wheel, run),
            )

    def _jobs(self, wanted: Wanted) -> Jobs:
        info = self.client.info()
        limit = int(info["MemTotal"])
        if self.limits.memory_gb is not None:
            limit = min(limit, int(self.limits.memory_gb * 10**9))
        return bounded(
            cores=int(info["NCPU"]),
            memory_limit_bytes=limit,
            requested=self.limits.jobs,
            memory_per_job_gb=wanted.recipe.build.memory_per_job_gb,
        )

    def _compile(self, wanted: Wanted, tree: Path, work: Path, jobs: Jobs, log: Path) -> Outcome:
        recipe = wanted.recipe
        shutil.rmtree(work / "out", ignore_errors=True)
        (work / "out").mkdir()
        for name in SCRIPTS:
            shutil.copyfile(INSIDE / name, work / "job" / name)
        if recipe.build.headers:
            preflight.write_facts(self.lock, recipe, work / "job")
        if recipe.linking.driver_stub:
            (work / "job" / "driver_stub.c").write_text(self._driver_stub())
        tools.stage_requirements(
            self.lock, self.facts.python_tag, recipe.build.requirements, work / "requirements"
        )
        read_only = {
            "/di/source": tree,
            "/di/job": work / "job",
            "/di/requirements": work / "requirements",
        }
        if recipe.build.version_from_git and recipe.source:
            read_only["/di/git"] = sources.git_folder(self.lock, recipe.source)
        if recipe.build.nvcc and self.facts.nvcc == "none":
            read_only[CUDA] = self._toolkit()
        job = Job(
            argv=("sh", "/di/job/build_wheel.sh"),
            environment=environment_of(wanted, self.facts, jobs),
            read_only=read_only,
            writable={"/di/out": work / "out"},
            memory_limit_bytes=jobs.memory_limit_bytes if self.limits.memory_gb else None,
            timeout_s=recipe.build.timeout_minutes * 60.0,
        )
        self.ui.line(f"  {jobs.why}; log {shown(log)}", style="dim")
        with log.open("a") as file:
            file.write(f"== {recipe.name}: {' '.join(job.command)}\n")
        outcome = run_job(self.client, self.facts.image_id, job, log=log, on_line=self._show)
        if (work / "out" / "headers-missing").exists():
            raise preflight.as_error(recipe.name, log)
        if outcome.exit_code != 0:
            with log.open(errors="backslashreplace") as file:
                failure = read_failure(file, 137 if outcome.out_of_memory else outcome.exit_code)
            nvcc = f"nvcc {nvcc_of(self.lock, self.facts)}"
            raise as_error(failure, name=recipe.name, jobs=jobs, nvcc=nvcc, log=log)
        return outcome

    def _show(self, line: str) -> None:
        self.ui.line(f"    {line[:200]}", style="dim")

    def _toolkit(self) -> Path:
        return toolkit.assemble(self.ui, self.lock)

    def _driver_stub(self) -> str:
        header = self._toolkit() / "include" / "cuda.h"
        return driver_stub.stub_source(header.read_text(errors="replace"))

    def _one_wheel(self, out: Path, name: str, log: Path) -> Path:
        wheels = sorted(out.glob("*.whl"))
        if len(wheels) != 1:
            raise WheelError(
                found=f"{name}: the build left {len(wheels)} wheels",
                expected="exactly one",
                remedy=f"see {shown(log)}",
            )
        return wheels[0]

    def _judge(self, wanted: Wanted, wheel: Path, log: Path) -> list[Verdict]:
        recipe = wanted.recipe
        with self.ui.step("inspect", wheel.name) as step:
            verdicts = inspect_wheel(
                wheel,
                recipe,
                python_tag=self.facts.python_tag,
                cuobjdump=tools.cuobjdump(self.lock) if recipe.build.nvcc else None,
                nccl_library=tools.nccl_library(self.lock) if recipe.build.nccl else None,
                places=wanted.places,
            )
            verdicts.append(
                import_in_image(
                    self.client,
                    self.facts,
                    wheel,
                    recipe.imports,
                    built_with=wanted.parts.torch,
                    log=log,
                    driver_stub=self._driver_stub() if DRIVER in recipe.linking.libraries else None,
                    toolkit=self._toolkit()
                    if recipe.build.nvcc and self.facts.nvcc == "none"
                    else None,
                )
            )
            bad = [verdict for verdict in verdicts if verdict.status == "fail"]
            step.status = "failed" if bad else "ok"
            step.note = (
                "; ".join(f"{v.check}: {v.found}" for v in bad) or f"{len(verdicts)} verdicts"
            )
        return verdicts

    def _statement(self, record: Record, wheel: Path, run: Mapping[str, Any]) -> dict[str, Any]:
        finished = datetime.datetime.fromisoformat(run["date"])
        started = finished - datetime.timedelta(seconds=run["seconds"])
        told = {
            "started": started.isoformat(timespec="seconds"),
            "finished": run["date"],
            "image": self.facts.image_id,
            "lock": self.lock.identity,
        }
        return wheel_statement(record, filename=wheel.name, sha256=sha256_of(wheel), run=told)

    def _run(self, jobs: Jobs, outcome: Outcome, out: Path, seconds: float) -> dict[str, Any]:
        peak = out / "peak-memory"
        return {
            "compile_seconds": round(outcome.seconds, 1),
            "seconds": round(seconds, 1),
            "jobs": jobs.count,
            "peak_memory_bytes": int(peak.read_text()) if peak.is_file() else None,
            "image": self.facts.image_id,
            "base": self.facts.labels.get("dih20.base", "unknown"),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
