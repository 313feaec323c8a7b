"""The whole way on this machine: the commands of a real host, against a throwaway host.

Each stage calls what the command beside it calls. Two private engines play the builder's machine
and the GPU host, a private sshd on a loopback port is the way between them. The host's engine
starts empty each time; the builder's keeps its layers, so that a second rehearsal is fast.
"""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from dih20.console import Console
from dih20.errors import RehearsalFailed
from dih20.paths import REPOSITORY
from dih20.plan import Action, Plan
from dih20.rehearse.dockerd import PrivateEngine
from dih20.rehearse.host_packages import ensure_host_packages, missing_packages
from dih20.rehearse.serving import rehearse_serving, serving_actions
from dih20.rehearse.settings import HOST, Places, environment, write_configs
from dih20.rehearse.sshd import PrivateSshd
from dih20.rehearse.stages import Stages

LIGHT_WHEELS = ("h20_probe", "h20_ops", "flash_mla", "deep_select", "v41", "dih20_serve")
VENDOR_WHEELS = ("deep_gemm", "deep_ep", "deepinfer")
NOOP_LIMIT_S = 5.0
EVIDENCE = REPOSITORY / "docs/evidence/vendor-wheels.json"


def rehearse(
    ui: Console, *, vendor: bool = False, serve: bool = False, plan_only: bool = False
) -> dict[str, Any]:
    """Rehearse; give the stages with their times.

    Args:
        vendor: also build the real vendor wheels.
        serve: also serve the canary on the host, upgrade it, let an upgrade fail, and go back.
    """
    places = Places.default()
    plan = make_plan(places, vendor=vendor, serve=serve)
    ui.plan(plan)
    if plan_only:
        return plan.as_dict()
    stages = Stages(ui)
    try:
        with stages.stage("prepare", "./inv doctor"):
            ensure_host_packages(ui)
        with ExitStack() as cleanup:
            rehearsal = Rehearsal(ui=ui, stages=stages, places=places, vendor=vendor)
            rehearsal.run(cleanup)
            if serve:
                rehearse_serving(ui, stages, places, LIGHT_WHEELS)
    finally:
        stages.table()
    ui.line("nothing was left running; GPU checks were not run: this machine has no GPU")
    return {"stages": [stage.as_dict() for stage in stages.done], "vendor": vendor}


def make_plan(places: Places, *, vendor: bool, serve: bool) -> Plan:
    """Give what a rehearsal is about to do."""
    actions = [
        Action(verb="install", target=entry.package, why=entry.purpose)
        for entry in missing_packages()
    ]
    actions += [
        Action(verb="start", target="two private engines and a private sshd"),
        Action(
            verb="make", target="the stand-in base, Debian trixie", why="stands for the vLLM base"
        ),
        Action(verb="lock and fetch", target=f"the inputs, into {places.root.parent}"),
        Action(verb="build", target="the di-h20 image on the stand-in base"),
        Action(verb="build", target=f"wheels {', '.join(wheels_of(vendor))}"),
        Action(verb="patch", target="the engine tree"),
        Action(verb="deploy", target=f"container di-h20 on host {HOST}, twice"),
        *(serving_actions() if serve else ()),
        Action(verb="stop", target="everything that was started"),
    ]
    return Plan(title="rehearse the whole way on this machine", actions=tuple(actions))


def wheels_of(vendor: bool) -> tuple[str, ...]:
    return LIGHT_WHEELS + VENDOR_WHEELS if vendor else LIGHT_WHEELS


@dataclass(kw_only=True)
class Rehearsal:
    """One run; each method is a stage and is called in the order they stand in."""

    ui: Console
    stages: Stages
    places: Places
    vendor: bool

    def run(self, cleanup: ExitStack) -> None:
        self._start(cleanup)
        self._lock()
        self._fetch()
        self._image()
        self._wheels()
        self._patch()
        self._deploy()
        self._deploy_again()
        self._verify()

    def _start(self, cleanup: ExitStack) -> None:
        places = self.places
        with self.stages.stage("start", "(your Docker engine and SSH login)") as stage:
            shutil.rmtree(places.host_work, ignore_errors=True)
            builder = cleanup.enter_context(PrivateEngine("builder", places.builder))
            host = cleanup.enter_context(PrivateEngine("host", places.host_engine, fresh=True))
            sshd = cleanup.enter_context(PrivateSshd())
            write_configs(places, host, sshd)
            settings = {
                "DOCKER_HOST": builder.url,
                "DI_CONFIGS": str(places.configs),
                "DI_LOCK": str(places.lock),
                "DI_WHEELS": str(places.wheels),
            }
            cleanup.enter_context(environment(**settings))
            stage.showed = f"2 engines, sshd on 127.0.0.1:{sshd.port}"

    def _lock(self) -> None:
        from dih20.rehearse.stand_in_lock import write_rehearsal_lock

        with self.stages.stage("lock", "./inv lock") as stage:
            stage.showed = write_rehearsal_lock(self.ui, self.places.lock)

    def _fetch(self) -> None:
        from dih20.fetch.fetching import fetch_base

        with self.stages.stage("fetch", "./inv fetch") as stage:
            result = fetch_base(
                self.ui, base="stand-in", only="", image_name="di-h20", only_plan=False
            )
            if self.vendor:
                fetch_base(
                    self.ui, base="stand-in", only="torch", image_name="di-h20", only_plan=False
                )
            size_mb = result["size_bytes"] / 1e6
            stage.showed = (
                f"{result['files']} files, {size_mb:.0f} MB; {result['fetched']} downloaded"
            )

    def _image(self) -> None:
        from dih20.image.command import build_image
        from dih20.patches import patchset_identity

        with self.stages.stage("image", "./inv build-image") as stage:
            built = build_image(self.ui, patchset=patchset_identity)
            stage.showed = f"{built['tag']}"

    def _wheels(self) -> None:
        from dih20.wheels.command import Choice, build_vendor

        with self.stages.stage("wheels", "./inv build-vendor") as stage:
            light = Choice(only=",".join(LIGHT_WHEELS))
            built = build_vendor(self.ui, light)["wheels"]
            if self.vendor:
                real = Choice(only=",".join(VENDOR_WHEELS), torch=True, evidence=str(EVIDENCE))
                built += build_vendor(self.ui, real)["wheels"]
            stage.showed = ", ".join(f"{row['name']} ({row['status']})" for row in built)

    def _patch(self) -> None:
        from dih20.patches.report import apply

        with self.stages.stage("patch", "./inv patch") as stage:
            made = apply(self.ui, "deepinfer")
            stage.showed = f"{len(made['patches'])} patches, tree {made['identity'][:12]}"

    def _deploy(self) -> None:
        from dih20.deploy.start import deploy_to

        with self.stages.stage("deploy", f"./inv deploy --host {HOST}") as stage:
            deployed = deploy_to(self.ui, HOST)
            self._expect(
                not deployed["plan"]["noop"], "the first deploy to an empty host", "a no-op"
            )
            not_run = [check for check in deployed["checks"] if check["status"] == "not run"]
            stage.showed = (
                f"container {deployed['container'][:12]}; {len(not_run)} checks not run: no GPU"
            )

    def _deploy_again(self) -> None:
        from dih20.deploy.start import deploy_to

        with self.stages.stage("deploy again", f"./inv deploy --host {HOST}") as stage:
            started = time.monotonic()
            deployed = deploy_to(self.ui, HOST)
            seconds = time.monotonic() - started
            self._expect(deployed["plan"]["noop"], "a second deploy", "work to do")
            if seconds > NOOP_LIMIT_S:
                stage.status = "warn"
                self.ui.warn(
                    f"the no-op deploy took {seconds:.1f} s, over {NOOP_LIMIT_S:.0f} s: is this machine busy?"
                )
            stage.showed = f"a no-op in {seconds:.1f} s"

    def _verify(self) -> None:
        from dih20.verify.command import verify

        with self.stages.stage("verify", f"./inv verify --host {HOST}") as stage:
            left_out = verify(self.ui, HOST)["not_compared"]
            stage.showed = f"no difference; not compared: {'; '.join(left_out) or 'nothing'}"

    @staticmethod
    def _expect(holds: bool, what: str, found: str) -> None:
        if not holds:
            raise RehearsalFailed(
                found=f"{what} showed {found}",
                expected="a first deploy to do work, a second one none",
                remedy="compare the plan above with the facts that it names",
            )
