"""The CI image: what it stands on and what is wanted in it; `inv lock --only ci` pins what is wanted."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dih20.config.image import Glibc, PackageName, PythonTag
from dih20.config.reading import Section


class OwnBase(Section):
    """An image of the user's, by its digest."""

    image: Annotated[str, Field(pattern=r"^[^\s@]+:[^\s@/]+$")]
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    suite: str
    architecture: Literal["amd64", "arm64"] = "amd64"
    python_tag: PythonTag
    glibc: Glibc


class CiConfig(Section):
    """The image that CI jobs run in. configs/ci.yaml is the manual of these keys."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    base: Literal["stand-in", "own"] = "stand-in"
    own_base: OwnBase | None = None
    apt: tuple[PackageName, ...]
    requirements: tuple[Literal["base", "dev", "serve"], ...]
    environment: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _own_needs_a_base(self) -> CiConfig:
        if self.base == "own" and self.own_base is None:
            raise ValueError("base: own needs own_base: with image, digest, suite and python_tag")
        return self
