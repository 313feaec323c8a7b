"""The sections of the lock, resolved one by one at the registry, the mirrors and the indexes in force."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dih20.config import load_ci
from dih20.config.image import ImageConfig
from dih20.config.mirrors import Mirrors
from dih20.console import Console, Step
from dih20.errors import Unresolved
from dih20.index.shelf import Indexes, open_indexes
from dih20.lock.base_pins import (
    AptRoots,
    apt_closure,
    ask_registry,
    registry_base,
    stand_in_base,
    variant_closure,
)
from dih20.lock.ci_pins import ci_image
from dih20.lock.files import UNRESOLVED, LockedFile
from dih20.lock.keeping import Keeping
from dih20.lock.model import Lock, Wheels
from dih20.lock.source_pins import pin_source, upstream_requirements
from dih20.lock.targets import Target
from dih20.lock.wants import wanted_by
from dih20.lock.wheel_pins import WheelPins


@dataclass
class Resolver:
    """Resolve parts one by one into a lock; pins that may stay are preferred.

    Example:
        with AptRoots(mirrors) as roots:
            lock = Resolver(ui, image, mirrors, roots, keeping).part("wheels", lock)
    """

    ui: Console
    image: ImageConfig
    mirrors: Mirrors
    roots: AptRoots
    keeping: Keeping
    _indexes: Indexes | None = None

    @property
    def indexes(self) -> Indexes:
        if self._indexes is None:
            self._indexes = open_indexes(self.mirrors)
            self.ui.line(
                f"  package indexes, from {self._indexes.source}: {self._indexes.shown}",
                style="dim",
            )
        return self._indexes

    def part(self, name: str, lock: Lock) -> Lock:
        """Give the lock with one part resolved anew and its wants noted."""
        section, _, base = name.partition(" ")
        change: dict[str, Any]
        match section:
            case "base":
                change = self._base(lock, base)
            case "apt":
                change = self._apt(lock, base)
            case "wheels":
                change = self._wheels()
            case "sources":
                change = self._sources()
            case "requirements":
                change = self._requirements()
            case "ci":
                change = self._ci(lock)
            case _:
                raise AssertionError(f"no part {name!r} in a lock")
        wants = {**lock.wants, name: wanted_by(name, self.image)}
        return lock.model_copy(update={**change, "wants": wants})

    def _base(self, lock: Lock, name: str) -> dict[str, Any]:
        vllm, stand_in = self.image.bases.vllm, self.image.bases.stand_in
        if name == "vllm":
            with self.ui.step("resolve", f"base vllm ({vllm.image})") as step:
                made = registry_base("vllm", vllm, self._digest(lock, step))
        else:
            with self.ui.step("resolve", f"base stand-in ({stand_in.suite})") as step:
                kept = self.keeping.packages_of(name)
                made = stand_in_base(name, stand_in, self.roots, kept)
                step.note = f"{len(made.packages)} packages"
        return {"bases": {**lock.bases, name: made}}

    def _digest(self, lock: Lock, step: Step) -> str:
        wanted = self.image.bases.vllm
        known = lock.bases.get("vllm")
        before = known.digest if known and known.image == wanted.image else UNRESOLVED
        try:
            now = ask_registry(wanted, self.mirrors)
        except Unresolved as fault:
            step.status, step.note = "not run", f"{fault.found}; the lock keeps {before}"
            return before
        step.note = now if before in (UNRESOLVED, now) else f"lock said {before}, tag now {now}"
        return now

    def _apt(self, lock: Lock, name: str) -> dict[str, Any]:
        with self.ui.step("resolve", f"apt packages on {name}") as step:
            closure = self._apt_on(lock, name, step)
        variants = {} if closure == UNRESOLVED else self._variants(lock, name, closure)
        return {"apt": {**lock.apt, name: closure, **variants}}

    def _variants(self, lock: Lock, name: str, installed: tuple[LockedFile, ...]) -> dict[str, Any]:
        """Give the packages of each variant on a base; its closure needs to know what is installed."""
        found: dict[str, Any] = {}
        for variant, wanted in self.image.variants.items():
            if wanted.base != name:
                continue
            key = f"{name}+{variant}"
            kept = self.keeping.files(lock.apt.get(key))
            with self.ui.step("resolve", f"apt packages of variant {variant}") as step:
                base = lock.bases[name]
                files = variant_closure(base, installed, wanted.apt, self.roots, kept)
                found[key] = files
                step.note = f"{len(files)} packages for {', '.join(wanted.apt)}"
        return found

    def _apt_on(self, lock: Lock, name: str, step: Step) -> Any:
        base, locked = lock.bases.get(name), lock.apt.get(name, UNRESOLVED)
        if base is None or not base.is_resolved:
            step.status, step.note = "not run", "its base is unresolved: `./inv lock --only base`"
            return UNRESOLVED
        try:
            files = apt_closure(base, self.image.apt, self.roots, self.keeping.files(locked))
        except Unresolved as fault:
            before = self.keeping.before
            is_same = before is not None and before.bases.get(name) == base
            left = locked if is_same else UNRESOLVED
            kept = "" if left == UNRESOLVED else "; the lock keeps what it has"
            step.status, step.note = "not run", f"{fault.found}; {fault.remedy}{kept}"
            return left
        step.note = f"{len(files)} packages for {', '.join(self.image.apt)}"
        return files

    def _ci(self, lock: Lock) -> dict[str, Any]:
        config = load_ci()
        with self.ui.step("resolve", f"packages of the CI image {config.name}") as step:
            if "stand-in" not in lock.bases:
                step.status, step.note = (
                    "not run",
                    "its base is unresolved: `./inv lock --only base`",
                )
                return {"ci": UNRESOLVED}
            kept = self.keeping.files(lock.ci.debs) if lock.ci != UNRESOLVED else ()
            try:
                made = ci_image(config, lock.bases["stand-in"], self.indexes, self.roots, kept)
            except Unresolved as fault:
                step.status, step.note = "not run", f"{fault.found}; {fault.remedy}"
                return {"ci": UNRESOLVED}
            step.note = f"{len(made.debs)} apt packages, {len(made.wheels)} wheels"
        return {"ci": made}

    def _targets(self) -> dict[str, Target]:
        bases = (self.image.bases.vllm, self.image.bases.stand_in)
        return {b.python_tag: Target(b.python_tag, b.glibc, b.architecture) for b in bases}

    def _pins(self) -> WheelPins:
        return WheelPins(self.indexes, self.image, self.keeping.index_files())

    def _wheels(self) -> dict[str, Any]:
        wanted, pins = self.image.wheels, self._pins()
        targets = self._targets()
        any_target = min(targets.values(), key=lambda t: int(t.glibc.split(".")[1]))
        bare = self.image.bases.stand_in.python_tag
        with self.ui.step("resolve", f"CUDA wheels of {wanted.cuda_release}"):
            headers = pins.headers(any_target)
            toolkit = pins.singles(any_target, wanted.toolkit)
            inspector = pins.singles(any_target, wanted.inspector)
            nccl = pins.singles(any_target, [wanted.nccl])
            older = pins.singles(
                any_target, [wanted.nccl_for_tests] if wanted.nccl_for_tests else []
            )
        with self.ui.step("resolve", f"build tools for {', '.join(targets)}"):
            build = {tag: pins.closure(target, wanted.build) for tag, target in targets.items()}
        with self.ui.step("resolve", f"torch for {bare}"):
            torch = {bare: pins.closure(targets[bare], wanted.torch)}
        return {
            "wheels": Wheels(
                headers=headers,
                toolkit=toolkit,
                inspector=inspector,
                nccl=nccl,
                nccl_for_tests=older,
                build=build,
                torch=torch,
            )
        }

    def _sources(self) -> dict[str, Any]:
        with self.ui.step("resolve", f"sources {', '.join(self.image.sources)}"):
            return {
                "upstream": {
                    name: pin_source(name, source, self.indexes)
                    for name, source in self.image.sources.items()
                }
            }

    def _requirements(self) -> dict[str, Any]:
        pins = self._pins()
        wanted = upstream_requirements(self.image, self.indexes)
        without = self.image.requirements.without
        python = {}
        for tag, target in self._targets().items():
            with self.ui.step("resolve", f"engine requirements for {tag}") as step:
                python[tag] = pins.closure(target, wanted, provided=without)
                step.note = f"{len(python[tag])} packages for {len(wanted)} wanted, without {', '.join(without)}"
        return {"python": python}
