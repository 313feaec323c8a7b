"""Compare what runs with what should: pure, one Drift for each difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dih20.deploy.container import ContainerSpec, container_spec
from dih20.deploy.readback import inspect_shortfalls
from dih20.verify.expected import Expected
from dih20.verify.found import Found

# What a deploy puts on a container beside owner, host and config; the config's hash is taken over them too.
TOLD: Final = tuple(f"dih20.{key}" for key in ("base", "lock", "python-tag", "torch", "patchset", "wheels", "layers"))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Drift:
    """One difference: what it is about, what is there, what is said here."""

    what: str
    there: str
    here: str

    @property
    def line(self) -> str:
        return f"{self.what}: {self.there} there, {self.here} here"


def drifts(found: Found | None, expected: Expected) -> list[Drift]:
    """Give every difference, the container first."""
    if found is None:
        return [Drift(what=f"container {expected.host.container}", there="none", here="one")]
    return [
        *_container(found, expected),
        *_image(found, expected),
        *_labels(found, expected),
        *_wheels(found, expected),
        *_nccl(found),
    ]


def not_compared(found: Found | None, expected: Expected) -> list[str]:
    """Say what was left out, and why."""
    lines = [f"{what}: {why}" for what, why in expected.unknown.items()]
    if found and not found.is_running:
        lines.append("wheels and NCCL: the container does not run")
    elif found and found.torch == "none":
        lines.append("NCCL: no torch in this image")
    return lines


def spec_of(found: Found, expected: Expected) -> ContainerSpec:
    """Give what a container of these labels would be created with by the configuration here."""
    labels = {key: found.labels.get(key, "") for key in TOLD}
    return container_spec(expected.host, image=str(found.attrs["Config"]["Image"]), labels=labels)


def _container(found: Found, expected: Expected) -> Iterator[Drift]:
    if not found.is_running:
        yield Drift(what="container state", there=str(found.attrs["State"]["Status"]), here="running")  # fmt: skip
    spec = spec_of(found, expected)
    was, now = found.labels.get("dih20.config", "none"), str(spec.config["Labels"]["dih20.config"])
    asked, made = (_without_own_folder(of, {was, now}) for of in (spec.config, found.attrs))
    settings = inspect_shortfalls(asked, made)
    for entry in settings:
        yield Drift(what=f"container {entry.what}", there=entry.actual, here=entry.required)
    if was != now and not settings:
        yield Drift(what="container configuration", there=was[:12], here=now[:12])


def _without_own_folder(container: Mapping[str, Any], configs: set[str]) -> dict[str, Any]:
    """Leave out the mount that is named after the configuration: it differs whenever that does."""
    host = container["HostConfig"]
    own = tuple(f"/{config[:12]}" for config in configs)
    mounts = [mount for mount in host.get("Mounts") or () if not mount["Source"].endswith(own)]
    return {**container, "HostConfig": {**host, "Mounts": mounts}}


def _image(found: Found, expected: Expected) -> Iterator[Drift]:
    made_from = str(found.attrs["Image"])
    if found.tagged != made_from:
        name = found.attrs["Config"]["Image"]
        other = f"the name {name} is {found.tagged[7:19] or 'gone'}"
        yield Drift(what="image id", there=f"the container runs {made_from[7:19]}, {other}", here="one image")  # fmt: skip
    identity = found.image_labels.get("dih20.identity", "none")
    if expected.image_identity and identity != expected.image_identity:
        yield Drift(what="image", there=identity[:12], here=expected.image_identity[:12])
    own = tuple(found.image["RootFS"]["Layers"])
    if expected.layers and own[: len(expected.layers)] != expected.layers:
        pairs = zip(own, expected.layers, strict=False)
        number = next((i for i, (a, b) in enumerate(pairs, 1) if a != b), len(own) + 1)
        there = own[number - 1][7:19] if number <= len(own) else "missing"
        yield Drift(what=f"image layer {number}", there=there, here=expected.layers[number - 1][7:19])  # fmt: skip


def _labels(found: Found, expected: Expected) -> Iterator[Drift]:
    wanted = {"lock": expected.lock, "patchset": expected.patchset}
    for name, here in wanted.items():
        there = found.labels.get(f"dih20.{name}", "none")
        if here is not None and there != here:
            yield Drift(what=name, there=there[:12], here=here[:12])
    told = found.labels.get("dih20.wheels"), found.image_labels.get("dih20.wheels", "none")
    if told[0] != told[1]:
        yield Drift(what="wheel set", there=f"image {told[1][:12]}", here=f"container {str(told[0])[:12]}")  # fmt: skip


def _wheels(found: Found, expected: Expected) -> Iterator[Drift]:
    if not found.is_running:
        return
    for wheel in found.wheels:
        name = f"wheel {wheel.record.name}"
        for file in wheel.changed[:5]:
            yield Drift(what=name, there=file, here="as installed")
        answer = expected.answer(wheel.record)
        if answer.is_hit is None:
            yield Drift(what=name, there=wheel.record.identity[:12], here=answer.why_unknown)
        for changed in answer.changed:
            yield Drift(what=name, there=wheel.record.identity[:12], here=f"{changed} (there -> here)")  # fmt: skip
    must = expected.wheels if found.torch == "none" else expected.wheels_with_torch
    for name in sorted(must - {wheel.record.name for wheel in found.wheels}):
        yield Drift(what=f"wheel {name}", there="not installed", here="in the set")


def _nccl(found: Found) -> Iterator[Drift]:
    for fact in found.nccl:
        if fact.status not in ("ok", "not applicable"):
            yield Drift(what=f"NCCL {fact.check}", there=fact.note, here="the locked one")
