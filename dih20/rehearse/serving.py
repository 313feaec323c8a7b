"""Serve in the rehearsal: the canary, by the real server, in the container of the throwaway host.

The upgrade that fails is a container of the image without torch: its engine cannot start, as a
broken build's could not. Everything else is what a real host sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from dih20.console import Console
from dih20.errors import FellBack, RehearsalFailed
from dih20.plan import Action
from dih20.rehearse.settings import HOST, Places
from dih20.rehearse.stages import Stages

VARIANT = "serve-cpu"
_QUESTIONS = {"中国的首都是哪里？": "北京", "What color is the sky?": " blue"}


def serving_actions() -> list[Action]:
    """Give what the serving part is about to do."""
    return [
        Action(verb="build", target=f"the variant {VARIANT}: one more layer, with CPU torch"),
        Action(verb="serve", target=f"the canary on {HOST}, and ask it"),
        Action(verb="fail", target="an upgrade on purpose: the old server serves again"),
        Action(verb="upgrade", target="the container, and roll it back"),
    ]


def rehearse_serving(ui: Console, stages: Stages, places: Places, wheels: tuple[str, ...]) -> None:
    """Serve, ask, fail an upgrade, upgrade, roll back, stop; `wheels` are those that the rehearsal builds."""
    serving = Serving(ui=ui, stages=stages, places=places, wheels=wheels)
    serving.image()
    serving.deploy()
    serving.serve()
    serving.failing_upgrade()
    serving.upgrade_and_rollback()
    serving.stop()


@dataclass(kw_only=True)
class Serving:
    """One run; each method is a stage."""

    ui: Console
    stages: Stages
    places: Places
    wheels: tuple[str, ...]
    tag: str = ""
    plain_tag: str = ""

    def image(self) -> None:
        from dih20.fetch.fetching import fetch_base
        from dih20.image.command import build_image
        from dih20.patches import patchset_identity

        with self.stages.stage("serve image", f"./inv build-image --variant {VARIANT}") as stage:
            fetch_base(self.ui, base="stand-in", only=VARIANT, image_name="di-h20", only_plan=False)
            self.plain_tag = str(build_image(self.ui, patchset=patchset_identity)["tag"])
            variant = build_image(self.ui, patchset=patchset_identity, variant=VARIANT)
            self.tag = str(variant["tag"])
            stage.showed = self.tag

    def deploy(self) -> None:
        with self.stages.stage("serve deploy", f"./inv deploy --host {HOST} --replace") as stage:
            stage.showed = f"container {self._deploy(self.tag)[:12]}"

    def _deploy(self, tag: str) -> str:
        from dih20.deploy.start import deploy_to
        from dih20.wheels.command import Choice, build_vendor

        build_vendor(self.ui, Choice(only=",".join(self.wheels), image=tag))
        return str(deploy_to(self.ui, HOST, tag, replace=True)["container"])

    def serve(self) -> None:
        from dih20.operate import state

        with self.stages.stage("serve", f"./inv serve --host {HOST} --canary") as stage:
            told = self._serve()
            again = self._serve()
            self._expect(bool(again["plan"]["noop"]), "a second serve", "work to do")
            self._ask()
            seen = state.status(self.ui, HOST)
            self._expect(seen["start"]["phase"] == "ready", "status", str(seen["start"]))
            state.logs(self.ui, HOST, follow=False, rank=0, tail=50)
            stage.showed = f"ready in {told['ready_s']} s, gate {told['gate'].get('state')}; asked"

    def _serve(self) -> dict[str, Any]:
        from dih20.operate import hosted_life

        return hosted_life.serve(self.ui, HOST, canary=True, record=False, only_plan=False)

    def _ask(self) -> None:
        from dih20.operate import state

        for question, expected in _QUESTIONS.items():
            text = str(state.ask(self.ui, HOST, question, max_tokens=12)["text"])
            self._expect(text.strip() == expected.strip(), f"the answer to {question}", repr(text))

    def failing_upgrade(self) -> None:
        with self.stages.stage("failing upgrade", f"./inv serve --host {HOST} --canary") as stage:
            self._deploy(self.plain_tag)
            try:
                self._serve()
            except FellBack as fell:
                stage.showed = f"fell back, exit code {fell.exit_code}; {fell.details['evidence']}"
            else:
                self._expect(False, "an upgrade to an image without torch", "a ready server")
            self._ask()

    def upgrade_and_rollback(self) -> None:
        from dih20.operate import hosted_life

        with self.stages.stage("rollback", f"./inv rollback --host {HOST}") as stage:
            before = self._serve()["container"]
            self._change_log_limits()
            after = self._deploy(self.tag)
            self._expect(self._serve()["container"] == after, "an upgrade", "the old container")
            back = hosted_life.rollback(self.ui, HOST, only_plan=False)["container"]
            self._expect(back == before, "a rollback", f"container {back[:12]}")
            self._ask()
            stage.showed = f"{before[:12]} -> {after[:12]} -> {back[:12]}"

    def _change_log_limits(self) -> None:
        path = self.places.configs / "hosts" / f"{HOST}.yaml"
        host = yaml.safe_load(path.read_text(encoding="utf-8"))
        host["log"] = {"max_size": "10m", "max_file": 2}
        path.write_text(yaml.safe_dump(host, sort_keys=False), encoding="utf-8")

    def stop(self) -> None:
        from dih20.operate import hosted_stop

        with self.stages.stage("stop", f"./inv stop --host {HOST}") as stage:
            ended = hosted_stop.stop(self.ui, HOST, only_plan=False)
            self._expect(ended["by"] == "TERM", "a stop", f"an end by {ended['by']}")
            stage.showed = f"{ended['processes']} processes gone by {ended['by']}"

    @staticmethod
    def _expect(holds: bool, what: str, found: str) -> None:
        if not holds:
            raise RehearsalFailed(
                found=f"{what} showed {found}",
                expected="what a real host shows: see docs/serving.md",
                remedy="read the lines above; evidence of failed starts is under build/logs",
            )
