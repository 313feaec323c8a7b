"""The sections of the lock, resolved one by one at the registry, the mirrors and the indexes in force."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
from dih20.lock.files import UNRESOLVED, Base
from dih20.lock.model import Lock, Wheels
from dih20.lock.source_pins import pin_source, upstream_requirements
from dih20.lock.targets import Target
from dih20.lock.wants import BASES, parts_of, wanted_by
from dih20.lock.wheel_pins import WheelPins


@dataclass
class Resolver:
    """Resolve sections one by one into a lock.

    Example:
        with AptRoots(mirrors) as roots:
            lock = Resolver(ui, image, mirrors, roots).section("wheels", lock)
    """

    ui: Console
    image: ImageConfig
    mirrors: Mirrors
    roots: AptRoots
    bases: tuple[str, ...] = BASES
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

    def section(self, name: str, lock: Lock) -> Lock:
        """Give the lock with one section resolved anew and its wants noted."""
        change = {
            "base": self._base,
            "apt": self._apt,
            "wheels": self._wheels,
            "sources": self._sources,
            "requirements": self._requirements,
        }[name](lock)
        wants = {
            **lock.wants,
            **{part: wanted_by(part, self.image) for part in parts_of(name, self.bases)},
        }
        return lock.model_copy(update={**change, "wants": wants})

    def _base(self, lock: Lock) -> dict[str, Any]:
        vllm, stand_in = self.image.bases.vllm, self.image.bases.stand_in
        bases = dict(lock.bases)
        if "stand-in" in self.bases:
            with self.ui.step("resolve", f"base stand-in ({stand_in.suite})") as step:
                bases["stand-in"] = stand_in_base("stand-in", stand_in, self.roots)
                step.note = f"{len(bases['stand-in'].packages)} packages"
        if "vllm" in self.bases:
            with self.ui.step("resolve", f"base vllm ({vllm.image})") as step:
                bases["vllm"] = registry_base("vllm", vllm, self._digest(lock, step))
        return {"bases": bases}

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

    def _apt(self, lock: Lock) -> dict[str, Any]:
        closures: dict[str, Any] = dict(lock.apt)
        for name, base in sorted(lock.bases.items()):
            if name not in self.bases:
                continue
            with self.ui.step("resolve", f"apt packages on {name}") as step:
                closures[name] = self._apt_on(base, step)
            closures |= self._variants(base, closures[name])
        return {"apt": closures}

    def _variants(self, base: Base, installed: Any) -> dict[str, Any]:
        """Give the packages of each variant on a base; its closure needs to know what is installed."""
        found: dict[str, Any] = {}
        for name, variant in self.image.variants.items():
            if variant.base == base.name and installed != UNRESOLVED:
                with self.ui.step("resolve", f"apt packages of variant {name}") as step:
                    files = variant_closure(base, installed, variant.apt, self.roots)
                    found[f"{base.name}+{name}"] = files
                    step.note = f"{len(files)} packages for {', '.join(variant.apt)}"
        return found

    def _apt_on(self, base: Base, step: Step) -> Any:
        if not base.is_resolved:
            step.status, step.note = "not run", "its base is unresolved: `./inv lock --only base`"
            return UNRESOLVED
        try:
            files = apt_closure(base, self.image, self.roots)
        except Unresolved as fault:
            step.status, step.note = "not run", f"{fault.found}; {fault.remedy}"
            return UNRESOLVED
        step.note = f"{len(files)} packages for {', '.join(self.image.apt)}"
        return files

    def _targets(self) -> dict[str, Target]:
        bases = (self.image.bases.vllm, self.image.bases.stand_in)
        return {b.python_tag: Target(b.python_tag, b.glibc, b.architecture) for b in bases}

    def _wheels(self, lock: Lock) -> dict[str, Any]:
        wanted, pins = self.image.wheels, WheelPins(self.indexes, self.image)
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

    def _sources(self, lock: Lock) -> dict[str, Any]:
        with self.ui.step("resolve", f"sources {', '.join(self.image.sources)}"):
            return {
                "upstream": {
                    name: pin_source(name, source, self.indexes)
                    for name, source in self.image.sources.items()
                }
            }

    def _requirements(self, lock: Lock) -> dict[str, Any]:
        pins = WheelPins(self.indexes, self.image)
        wanted = upstream_requirements(self.image, self.indexes)
        without = self.image.requirements.without
        python = {}
        for tag, target in self._targets().items():
            with self.ui.step("resolve", f"engine requirements for {tag}") as step:
                python[tag] = pins.closure(target, wanted, provided=without)
                step.note = f"{len(python[tag])} packages for {len(wanted)} wanted, without {', '.join(without)}"
        return {"python": python}
