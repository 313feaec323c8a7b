"""Build the image twice without cache, at two times and in two folders, and compare the ids."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.errors import NotReproducible, UsageError
from dih20.image import build, engine
from dih20.image.staging import local_folder
from dih20.image.steps import Step, load_steps
from dih20.paths import REPOSITORY
from dih20.plan import Action, Plan
from dih20.rebuild.image_difference import ImageDifference, compare_images
from dih20.rebuild.image_evidence import write_evidence

if TYPE_CHECKING:
    import docker

    from dih20.config import ImageConfig
    from dih20.lock import Lock

KEPT = "di-h20-check"  # the name of two images that differ, so that they can be looked at
_LEAST_APART_S = 2.0
_FOLDERS = {"first": "check", "second": "check/another/place"}


@dataclass(frozen=True, kw_only=True)
class Build:
    """One build without cache: what came out and what it took."""

    id: str
    seconds: float
    normalise_s: float
    written_bytes: int
    folder: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "seconds": round(self.seconds, 1),
            "normalise_s": round(self.normalise_s, 1),
            "written_bytes": self.written_bytes,
            "folder": self.folder,
        }


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two builds of one image."""

    first: Build
    second: Build
    difference: ImageDifference | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "equal": self.difference is None,
            "first": self.first.as_dict(),
            "second": self.second.as_dict(),
            **({"difference": self.difference.as_dict()} if self.difference else {}),
        }


@dataclass(kw_only=True)
class ImageCheck:
    """Builds pairs in one engine and leaves there what it found, but for two images that differ.

    Args:
        steps: other steps than those of the image's own folder.
        folder: the image's own folder, images/NAME.
        labels: as build_image takes them.
    """

    ui: Console
    client: docker.DockerClient
    config: ImageConfig
    lock: Lock
    folder: Path
    steps: Sequence[Step] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    _made: list[str] = field(default_factory=list)

    def pair(self) -> Pair:
        """Build twice and compare."""
        before = {str(entry["Id"]) for entry in self.client.api.images(all=True)}
        try:
            first, one = self._build("first")
            time.sleep(_LEAST_APART_S)
            second, other = self._build("second")
            with self.ui.step("compare", "two builds") as step:
                difference = compare_images(self.ui, self.client, one, other)
                step.status = "failed" if difference else "ok"
                step.note = difference.text if difference else f"both are {first.id[7:19]}"
            if difference:
                for name, built in (("first", first), ("second", second)):
                    self.client.images.get(built.id).tag(KEPT, name)
        finally:
            self._remove(before)
        return Pair(first=first, second=second, difference=difference)

    def _build(self, name: str) -> tuple[Build, build.BuiltImage]:
        begun, already = time.monotonic(), len(self.ui.steps)
        with self._own_steps(name) as steps:
            made = build.build_image(
                self.ui,
                self.client,
                self.config,
                self.lock,
                steps=steps,
                labels=self.labels,
                stage=partial(local_folder, below=_FOLDERS[name]),
                fresh=True,
            )
        seconds = time.monotonic() - begun
        self._made += [made.id, *(image for _, image in reversed(made.step_images))]
        normal = [step for step in self.ui.steps[already:] if step.verb == "normalise"]
        return Build(
            id=made.id,
            seconds=seconds,
            normalise_s=sum(step.seconds for step in normal),
            written_bytes=sum(step.details.get("written_bytes", 0) for step in normal),
            folder=_FOLDERS[name],
        ), made

    @contextlib.contextmanager
    def _own_steps(self, name: str) -> Any:
        """Give the steps from a copy of the image's folder elsewhere, so that no path can tell."""
        if self.steps is not None:
            yield self.steps
            return
        with tempfile.TemporaryDirectory(prefix=f"dih20-{name}-") as scratch:
            copy = Path(scratch) / name / self.folder.name
            shutil.copytree(self.folder, copy)
            yield load_steps(copy)

    def _remove(self, before: set[str]) -> None:
        """Remove the images of this check; one that was there, or has a name now, stays."""
        from docker.errors import APIError, ImageNotFound

        for image in dict.fromkeys(self._made):
            # In use by others, or gone with an image above it: either way nothing is left to do here.
            with contextlib.suppress(ImageNotFound, APIError):
                if image not in before and not self.client.images.get(image).tags:
                    self.client.images.remove(image, noprune=True)
        self._made.clear()


def check(
    ui: Console,
    *,
    base: str = "",
    only: str = "",
    times: int = 1,
    evidence: str = "",
    plan_only: bool = False,
) -> dict[str, Any]:
    """Carry out `inv rebuild --check image`; raise NotReproducible that names what differs."""
    if times < 1:
        raise UsageError(found=f"--times {times}", expected="one or more", remedy="correct it")
    config, lock, folder, labels = _inputs(only or "di-h20", base)
    lock.base(config.base).require_digest()
    plan = Plan(
        title=f"compare two builds of {config.name} on {config.base}",
        actions=(Action(verb="build twice", target=config.name, why=f"{times} time(s), no cache"),),
    )
    ui.plan(plan)
    if plan_only:
        return {"image": config.name, "plan": plan.as_dict()}
    with closing(engine.connect()) as client:
        checker = ImageCheck(
            ui=ui, client=client, config=config, lock=lock, folder=folder, labels=labels
        )
        pairs = [checker.pair() for _ in range(times)]
    if evidence:
        write_evidence(ui, Path(evidence), config, lock, [pair.as_dict() for pair in pairs])
    return judged(ui, config.name, pairs)


def judged(ui: Console, name: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Give the outcome as plain values, or raise when a pair differs."""
    rows = [
        [p.first.id[7:19], p.second.id[7:19], "differ" if p.difference else "equal"] for p in pairs
    ]
    ui.table(["first", "second", "outcome"], rows)
    result = {"image": name, "pairs": [pair.as_dict() for pair in pairs]}
    bad = [pair.difference for pair in pairs if pair.difference]
    ids = {built.id for pair in pairs for built in (pair.first, pair.second)}
    if bad or len(ids) != 1:
        said = "; ".join(dict.fromkeys(difference.text for difference in bad))
        raise NotReproducible(
            found=said or f"pairs are equal in themselves but not to each other: {', '.join(ids)}",
            expected="the same image id from the same inputs, whenever and wherever the build ran",
            remedy=f"see in that step what writes a time, a random number or an order; both images are kept as "
            f"{KEPT}:first and {KEPT}:second",
            details=result,
        )
    return result


def _inputs(name: str, base: str) -> tuple[ImageConfig, Lock, Path, Mapping[str, str]]:
    """Give what the image's own task gives its build."""
    from dih20.config import load_image
    from dih20.image.step_plan import chosen_base
    from dih20.lock import Lock
    from dih20.patches import patchset_identity

    if name in ("ci", "di-ci"):
        from dih20.ci.image import inputs

        config, lock, _ = inputs()
        return config, lock, REPOSITORY / "images" / "ci", {}
    lock = Lock.load()
    config = chosen_base(load_image(name), base)
    labels = {"dih20.patchset": patchset_identity(lock)}
    return config, lock, REPOSITORY / "images" / "di-h20", labels
