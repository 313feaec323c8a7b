"""Read what an image is made of: images/NAME/image.yaml and the step scripts beside it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dih20.config.reading import Section, read_config
from dih20.errors import ConfigError, ImageError
from dih20.paths import REPOSITORY, shown

Group = Literal["debs", "headers", "nccl", "requirements", "serve-cpu"]
_INSIDE = Path(__file__).resolve().parent / "inside"


class StepEntry(Section):
    """One entry under `steps:` of image.yaml."""

    name: Annotated[str, Field(pattern=r"^[0-9]{2}-[a-z0-9-]+$")]
    inputs: tuple[Group, ...] = ()
    uses: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)


class ImageEntries(Section):
    """The file images/NAME/image.yaml."""

    steps: tuple[StepEntry, ...]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One layer: a script, the files it calls, the groups of locked files it reads, its variables."""

    name: str
    script: Path
    inputs: tuple[Group, ...]
    uses: tuple[Path, ...]
    env: dict[str, str]

    def own_hashes(self) -> dict[str, str]:
        """Give the hash of the script and of each file it calls."""
        hashes = {"script": file_hash(self.script)}
        return hashes | {path.name: file_hash(path) for path in self.uses}


def load_variant_steps(name: str) -> tuple[Step, ...]:
    """Give the steps of a variant: those of the image, then its own."""
    return (*load_steps(), *load_steps(REPOSITORY / "images" / name))


def load_steps(folder: Path | None = None) -> tuple[Step, ...]:
    """Give the steps of an image in order; a name without a script is an error, and so the reverse."""
    folder = folder or REPOSITORY / "images" / "di-h20"
    entries = read_config(folder / "image.yaml", ImageEntries).steps
    scripts = {path.stem for path in (folder / "steps").glob("*.sh")}
    names = [entry.name for entry in entries]
    if set(names) != scripts or names != sorted(names):
        raise ConfigError(
            found=f"{shown(folder)}/image.yaml lists steps {', '.join(names)}",
            expected=f"each script of {shown(folder)}/steps once, in order: {', '.join(sorted(scripts))}",
            remedy="add the missing entry or script",
        )
    return tuple(
        Step(
            name=entry.name,
            script=folder / "steps" / f"{entry.name}.sh",
            inputs=entry.inputs,
            uses=tuple(_helper(folder, name) for name in entry.uses),
            env=_checked_env(entry.name, entry.env),
        )
        for entry in entries
    )


def _helper(folder: Path, name: str) -> Path:
    shared = (REPOSITORY / "images/di-h20/lib", _INSIDE, REPOSITORY / "requirements")
    for path in (place / name for place in (folder / "lib", *shared)):
        if path.is_file():
            return path
    raise ConfigError(
        found=f"{shown(folder)}/image.yaml uses {name}",
        expected=f"a file of {shown(folder)}/lib or of {', '.join(map(shown, shared))}",
        remedy="correct the name",
    )


def _checked_env(step: str, env: dict[str, str]) -> dict[str, str]:
    refuse_stubs([f"{name}={value}" for name, value in env.items()], f"step {step}")
    return dict(env)


def refuse_stubs(environment: list[str], where: str) -> None:
    """Raise when a run-time library path holds the toolkit's stubs.

    The stub libcuda there has the driver's name and no driver in it: a process that finds it starts,
    then fails at its first CUDA call.
    """
    for entry in environment:
        name, _, value = entry.partition("=")
        stubs = [folder for folder in value.split(":") if "stubs" in Path(folder).parts]
        if name == "LD_LIBRARY_PATH" and stubs:
            raise ImageError(
                found=f"{name} of {where} holds {', '.join(stubs)}",
                expected="no stubs folder: its libcuda.so is for linking and must never be loaded",
                remedy=f"take it out of {name}; a link finds it by LIBRARY_PATH or -L",
            )


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
