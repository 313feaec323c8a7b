"""Recipes: one annotated YAML per wheel, and what each key may hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dih20.config.reading import Section, read_config
from dih20.errors import UsageError
from dih20.paths import REPOSITORY

DeviceCode = Literal["aot", "jit", "none"]
Policy = Literal["build", "drop-in", "real-or-drop-in"]

# What every extension may need; a recipe adds what its own code needs.
ALWAYS_ALLOWED = (
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "ld-linux-x86-64.so.2",
)


class RecipeSource(Section):
    """Where the tree comes from: an upstream of the lock, or a folder of this repository.

    `beside` names further files and folders of this repository, put beside the folder's own files.
    """

    lock: str | None = None
    path: str | None = None
    beside: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _exactly_one(self) -> RecipeSource:
        if (self.lock is None) == (self.path is None):
            raise ValueError("a source is exactly one of lock or path")
        if self.beside and self.path is None:
            raise ValueError("beside goes with path: an upstream's tree is taken as it is")
        return self


class DeviceCodePromise(Section):
    """What machine code for the GPU the wheel carries; the inspector reads the files to judge it."""

    kind: DeviceCode = "none"
    architectures: tuple[Annotated[str, Field(pattern=r"^sm_\d+[af]?$")], ...] = ()

    @model_validator(mode="after")
    def _architectures_go_with_aot(self) -> DeviceCodePromise:
        if (self.kind == "aot") != bool(self.architectures):
            raise ValueError("architectures are given for kind aot, and only there")
        return self


class Linking(Section):
    """Which libraries and search paths the built files may name."""

    libraries: tuple[str, ...] = ()
    rpaths: tuple[str, ...] = ()
    driver_stub: bool = False
    glibc_at_most: Annotated[str, Field(pattern=r"^\d+\.\d+$")] | None = None

    @property
    def allowed_libraries(self) -> frozenset[str]:
        return frozenset((*ALWAYS_ALLOWED, *self.libraries))


class Build(Section):
    """How the build runs: what is installed for it, what it sees, what it may use."""

    requirements: tuple[str, ...] = ("setuptools", "wheel")
    environment: dict[str, str] = Field(default_factory=dict)
    headers: tuple[str, ...] = ()
    torch: bool = False
    nvcc: bool = False
    nccl: bool = False
    version_from_git: bool = False
    memory_per_job_gb: Annotated[float, Field(gt=0)] = 5.0
    timeout_minutes: Annotated[int, Field(gt=0)] = 60


class Recipe(Section):
    """One wheel. recipes/deep_gemm.yaml is the manual of these keys."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    distribution: str
    about: str
    policy: Policy = "build"
    reason: str | None = None
    optional: bool = False
    source: RecipeSource | None = None
    drop_in: RecipeSource | None = None
    python_tag: Literal["image", "py3"] = "image"
    build: Build = Build()
    device_code: DeviceCodePromise = DeviceCodePromise()
    linking: Linking = Linking()
    imports: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _policy_has_what_it_needs(self) -> Recipe:
        if self.policy == "build" and self.source is None:
            raise ValueError("policy build needs a source")
        if self.policy == "drop-in" and not (self.drop_in and self.reason):
            raise ValueError("policy drop-in needs drop_in and reason")
        if self.policy == "real-or-drop-in" and not (self.source and self.drop_in):
            raise ValueError("policy real-or-drop-in needs source and drop_in")
        if self.drop_in and self.policy == "build":
            raise ValueError("policy build has no drop_in; real-or-drop-in has")
        if self.drop_in and self.drop_in.path is None:
            raise ValueError("a drop-in is a folder of this repository: drop_in: {path: ...}")
        return self

    @property
    def replacement(self) -> str:
        """Give what stands in for the upstream, as messages name it."""
        return str(self.drop_in.path) if self.drop_in else "nothing: the recipe names no drop-in"

    def as_drop_in(self) -> Recipe:
        """Give the recipe of the drop-in: pure python from its folder, under the same name."""
        assert self.drop_in is not None, f"recipe {self.name} has no drop-in"
        return Recipe(
            name=self.name,
            distribution=self.distribution,
            about=self.about,
            optional=self.optional,
            source=self.drop_in,
            python_tag="py3",
            build=Build(timeout_minutes=10),
            device_code=DeviceCodePromise(kind="jit"),
            imports=self.imports,
        )


def recipes_dir() -> Path:
    """Give the folder of recipes in the repository."""
    return REPOSITORY / "recipes"


def load_all(folder: Path | None = None) -> list[Recipe]:
    """Give every recipe, by name; a file must be named after its recipe."""
    recipes = []
    for path in sorted((folder or recipes_dir()).glob("*.yaml")):
        recipe = read_config(path, Recipe)
        if recipe.name != path.stem:
            raise UsageError(
                found=f"{path.name} holds the recipe {recipe.name!r}",
                expected=f"name: {path.stem}, the name of its file",
                remedy="rename one of the two",
            )
        recipes.append(recipe)
    return recipes


def select(recipes: list[Recipe], only: str | None) -> list[Recipe]:
    """Give the recipes named in a comma-separated list, or all of them."""
    if not only:
        return recipes
    by_name = {recipe.name: recipe for recipe in recipes}
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in by_name]
    if unknown:
        raise UsageError(
            found=f"no recipe named {', '.join(unknown)}",
            expected=f"one of {', '.join(by_name)}",
            remedy="correct the name, or add recipes/NAME.yaml",
        )
    return [by_name[name] for name in wanted]


def fill_in(text: str, places: Mapping[str, str]) -> str:
    """Replace {site_packages} and {nccl} by the image's folders; one that is not known stays."""
    for name, folder in places.items():
        text = text.replace("{" + name + "}", folder)
    return text
