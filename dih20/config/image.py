"""The image: which base it stands on and what is wanted in it; `inv lock` pins what is wanted."""

from __future__ import annotations

from typing import Annotated, Literal

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, Field, model_validator

from dih20.config.reading import Section
from dih20.errors import UsageError

BaseName = Literal["vllm", "stand-in"]


def _requirement(text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement as fault:
        raise ValueError(f"{text!r} is not a requirement such as name==1.2: {fault}") from fault
    return text


Wanted = Annotated[str, AfterValidator(_requirement)]
PythonTag = Annotated[str, Field(pattern=r"^cp3\d+$")]
Glibc = Annotated[str, Field(pattern=r"^2\.\d+$")]
PackageName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]


class RegistryBase(Section):
    """A base that lies in an image registry."""

    image: Annotated[str, Field(pattern=r"^[^\s@]+:[^\s@/]+$")]
    architecture: Literal["amd64", "arm64"] = "amd64"
    suite: str
    python_tag: PythonTag
    torch: str
    glibc: Glibc = "2.39"


class StandInBase(Section):
    """A base made here from distribution packages, for machines that reach no registry."""

    suite: str
    architecture: Literal["amd64", "arm64"] = "amd64"
    packages: str
    python_tag: PythonTag
    torch: Literal["none"] = "none"
    glibc: Glibc = "2.41"


class Bases(Section):
    vllm: RegistryBase
    stand_in: Annotated[StandInBase, Field(alias="stand-in")]


class Source(Section):
    """Where one upstream tree comes from: exactly one of sdist, git (with commit) or path."""

    sdist: Wanted | None = None
    git: str | None = None
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None
    path: str | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Source:
        given = [kind for kind in ("sdist", "git", "path") if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(
                f"a source is one of sdist, git or path; given: {', '.join(given) or 'none'}"
            )
        if (self.git is None) != (self.commit is None):
            raise ValueError(
                "git and commit belong together: a branch or tag moves, a commit does not"
            )
        return self


class Requirements(Section):
    """The engine's python packages: upstream's own files, less what the base gives or we replace."""

    source: str = "deepinfer"
    files: tuple[str, ...] = ("requirements.txt",)
    without: tuple[str, ...] = ()
    also: tuple[Wanted, ...] = ()


class Wheels(Section):
    """Wheels that are mounted into builds; versions of one CUDA release belong together."""

    cuda_release: Wanted
    headers: tuple[Wanted, ...]
    toolkit: tuple[Wanted, ...] = ()
    inspector: tuple[Wanted, ...] = ()
    nccl: Wanted
    nccl_for_tests: Wanted | None = None
    build: tuple[Wanted, ...] = ()
    torch: tuple[Wanted, ...] = ()


class Variant(Section):
    """One more layer on the finished image, on one base; steps and scripts are in images/NAME."""

    base: BaseName
    apt: tuple[PackageName, ...]


class ImageConfig(Section):
    """One image. configs/images/di-h20.yaml is the manual of these keys."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    base: BaseName = "vllm"
    cuda: Annotated[str, Field(pattern=r"^\d+\.\d+$")]
    bases: Bases
    apt: tuple[PackageName, ...] = ()
    variants: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")], Variant] = Field(
        default_factory=dict
    )
    wheels: Wheels
    sources: dict[str, Source]
    requirements: Requirements = Requirements()
    environment: dict[str, str] = Field(default_factory=dict)

    def variant(self, name: str) -> ImageConfig:
        """Give the configuration of a variant: its own name and base, else this one."""
        if name not in self.variants:
            raise UsageError(
                found=f"image {self.name} has no variant {name}",
                expected=f"one of: {', '.join(self.variants) or 'none'}",
                remedy="correct the name, or add it under variants: in configs/images",
            )
        return self.model_copy(update={"name": name, "base": self.variants[name].base})
