"""One wheel built twice: at two times, in two folders and two containers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.lock import Lock
from dih20.paths import build_dir
from dih20.rebuild.wheel_difference import WheelDifference, compare_wheels
from dih20.wheels.build import Builder, Limits
from dih20.wheels.image_facts import facts_of
from dih20.wheels.plan import Skipped, Wanted
from dih20.wheels.recipes import Recipe
from dih20.wheels.store import Store, StoredWheel
from dih20.wheels.wheel_set import look_at

if TYPE_CHECKING:
    import docker

_LEAST_APART_S = 2.0  # a zip archive counts time in steps of two seconds


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One wheel, built twice. The first one may have been in the store already."""

    name: str
    first: StoredWheel
    second: StoredWheel
    was_stored: bool
    difference: WheelDifference | None

    def as_dict(self) -> dict[str, Any]:
        first, second = (
            {
                "sha256": wheel.sha256,
                "date": wheel.build["date"],
                "seconds": wheel.build["seconds"],
                "image": wheel.build["image"],
            }
            for wheel in (self.first, self.second)
        )
        return {
            "name": self.name,
            "file": self.first.path.name,
            "identity": self.first.identity,
            "equal": self.difference is None,
            "first": {**first, "from": "the store" if self.was_stored else "this run"},
            "second": second,
            **({"difference": self.difference.as_dict()} if self.difference else {}),
        }


@dataclass(kw_only=True)
class WheelCheck:
    """Builds pairs for one image and one lock.

    Args:
        store: its wheels serve as the first of two where the identity is the same; nothing is added to it.
        other_image: the second of two is built in this one; without it in the same image.
    """

    ui: Console
    client: docker.DockerClient
    image: str
    lock: Lock
    store: Store = field(default_factory=Store)
    recipes: Sequence[Recipe] | None = None
    other_image: str = ""
    scratch: Path = field(default_factory=lambda: build_dir() / "rebuild")

    def considered(self, only: str) -> list[Wanted | Skipped]:
        """Give what the recipes ask for on this image."""
        return look_at(
            self.client, self.image, self.lock, only=only or None, recipes=self.recipes, store=self.store
        )[1]  # fmt: skip

    def pair(self, wanted: Wanted, *, number: int = 1) -> Pair:
        """Build one wheel twice, or once when the store has the first; only the first pair takes from there."""
        folder = self.scratch / wanted.recipe.name
        shutil.rmtree(folder, ignore_errors=True)
        stored = wanted.hit if number == 1 else None
        with self.ui.step("compare", f"two builds of {wanted.recipe.name}") as step:
            first = stored or self.build_once(wanted, self.image, folder / "first")
            time.sleep(_LEAST_APART_S)
            image = self.other_image or self.image
            second = self.build_once(wanted, image, folder / "another" / "place")
            difference = compare_wheels(first.path, second.path)
            step.status = "failed" if difference else "ok"
            step.note = difference.text if difference else f"both are {first.sha256[:12]}"
        if not difference:
            shutil.rmtree(folder, ignore_errors=True)
        return Pair(
            name=wanted.recipe.name,
            first=first,
            second=second,
            was_stored=stored is not None,
            difference=difference,
        )

    def build_once(self, wanted: Wanted, image: str, folder: Path) -> StoredWheel:
        """Build a wheel in an image, with work folder, log and store below a folder of its own."""
        builder = Builder(
            ui=self.ui,
            client=self.client,
            facts=facts_of(self.client, image),
            lock=self.lock,
            store=Store(folder / "wheels"),
            limits=Limits(),
            scratch=folder,
        )
        return builder.build(wanted)
