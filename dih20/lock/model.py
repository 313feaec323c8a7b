"""Read di.lock.yaml and answer which files belong to what."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from dih20.config.document import dotted, read_document
from dih20.errors import ConfigError, LockError, Unresolved
from dih20.lock.files import UNRESOLVED, Base, CiImage, LockedFile, LockedSource, Pinned
from dih20.paths import lock_file, shown

Files = tuple[LockedFile, ...]
MaybeFiles = Files | Literal["unresolved"]
FORMAT: Final = 1


class Wheels(Pinned):
    headers: MaybeFiles = UNRESOLVED
    toolkit: MaybeFiles = UNRESOLVED
    inspector: MaybeFiles = UNRESOLVED
    nccl: MaybeFiles = UNRESOLVED
    nccl_for_tests: MaybeFiles = UNRESOLVED
    build: dict[str, Files] | Literal["unresolved"] = UNRESOLVED
    torch: dict[str, Files] | Literal["unresolved"] = UNRESOLVED


class Lock(Pinned):
    """Every pin. Getters raise Unresolved, with the command to run, for what was never resolved.

    Args:
        image: the file in configs/images whose wants were resolved.
        wants: per section, the sha256 over what was wanted; `inv lock --check` compares them.
    """

    format: Literal[1] = FORMAT
    image: str
    wants: dict[str, str] = Field(default_factory=dict)
    bases: dict[str, Base] = Field(default_factory=dict)
    apt: dict[str, MaybeFiles] = Field(default_factory=dict)
    wheels: Wheels = Wheels()
    python: Annotated[dict[str, Files] | Literal["unresolved"], Field(alias="requirements")] = (
        UNRESOLVED
    )
    upstream: Annotated[dict[str, LockedSource] | Literal["unresolved"], Field(alias="sources")] = (
        UNRESOLVED
    )
    ci: CiImage | Literal["unresolved"] = UNRESOLVED

    @classmethod
    def load(cls, path: Path | None = None) -> Lock:
        """Read the lock in force, or the one at a path."""
        from dih20.lock.canonical import from_plain

        where = path or lock_file()
        if not where.is_file():
            raise LockError(
                found=f"no lock at {shown(where)}",
                expected="the file that `./inv lock` writes, kept in git",
                remedy="run `./inv lock`, or take di.lock.yaml back from git",
            )
        try:
            document = read_document(where)
            return cls.model_validate(from_plain(document.values))
        except ConfigError as fault:
            raise _unreadable(fault.found, fault.expected) from fault
        except ValidationError as fault:
            details = [f"{dotted(d['loc'])}: {d['msg']}" for d in fault.errors()[:5]]
            raise _unreadable(
                f"{shown(where)}: " + "; ".join(details), f"format {FORMAT}"
            ) from fault
        except (KeyError, TypeError, AttributeError) as fault:
            raise _unreadable(
                f"{shown(where)}: not of the lock's form ({fault!r})", f"format {FORMAT}"
            ) from fault

    @property
    def identity(self) -> str:
        """Give the sha256 over the canonical form; comments and layout of the file do not count."""
        from dih20.lock.canonical import canonical_bytes

        return hashlib.sha256(canonical_bytes(self)).hexdigest()

    def base(self, name: str) -> Base:
        """Give a base by its name, "vllm" or "stand-in"."""
        if name not in self.bases:
            raise LockError(
                found=f"no base {name!r} in the lock",
                expected=f"one of: {', '.join(self.bases) or 'none yet'}",
                remedy="correct the name, or run `./inv lock --only base`",
            )
        return self.bases[name]

    def base_debs(self, name: str) -> list[LockedFile]:
        """Give every package of a base made here; none for a base from a registry."""
        return list(self.base(name).packages)

    def debs(self, base: str) -> list[LockedFile]:
        """Give the apt packages put on a base, with every dependency that the base lacks."""
        self.base(base).require_digest()
        return self._resolved(
            self.apt.get(base, UNRESOLVED), f"apt packages for base {base!r}", "apt"
        )

    def variant_debs(self, base: str, variant: str) -> list[LockedFile]:
        """Give the apt packages of a variant's layer: what the finished image on its base lacks."""
        files = self.apt.get(f"{base}+{variant}", UNRESOLVED)
        return self._resolved(files, f"apt packages of variant {variant!r}", "apt")

    def header_wheels(self) -> list[LockedFile]:
        """Give the wheels whose headers make the overlay."""
        return self._resolved(self.wheels.headers, "header wheels", "wheels")

    def toolkit_wheels(self) -> list[LockedFile]:
        """Give the wheels that make a CUDA toolkit for a base without one (the stand-in)."""
        return self._resolved(self.wheels.toolkit, "toolkit wheels", "wheels")

    def inspector_wheels(self) -> list[LockedFile]:
        """Give the wheels that read device code out of binaries (cuobjdump)."""
        return self._resolved(self.wheels.inspector, "inspector wheels", "wheels")

    def nccl(self) -> LockedFile:
        """Give the NCCL that the image, the builds and the running process all use."""
        return self._resolved(self.wheels.nccl, "NCCL", "wheels")[0]

    def nccl_for_tests(self) -> LockedFile:
        """Give an older NCCL: tests put it in the wrong place, to see the checks fire."""
        return self._resolved(self.wheels.nccl_for_tests, "the older NCCL for tests", "wheels")[0]

    def build_requirements(self, python_tag: str) -> list[LockedFile]:
        """Give the python packages that wheel builds need, for one python."""
        return self._for_python(self.wheels.build, python_tag, "build requirements", "wheels")

    def torch_wheels(self, python_tag: str) -> list[LockedFile]:
        """Give torch with everything it needs, for the base that has none of its own."""
        return self._for_python(self.wheels.torch, python_tag, "torch", "wheels")

    def requirements(self, python_tag: str) -> list[LockedFile]:
        """Give the engine's python packages for one python, without torch and flash-attn."""
        return self._for_python(self.python, python_tag, "engine requirements", "requirements")

    def source(self, name: str) -> LockedSource:
        """Give one upstream source."""
        sources = self._sources()
        if name not in sources:
            raise LockError(
                found=f"no source {name!r} in the lock",
                expected=f"one of: {', '.join(sources)}",
                remedy="correct the name, or add it under sources: in configs/images and run `./inv lock`",
            )
        return sources[name]

    def sources(self) -> list[LockedFile]:
        """Give the sdists; sources from git or a path have no file."""
        return [source.file for source in self._sources().values() if source.file]

    def ci_image(self) -> CiImage:
        """Give the pins of the CI image."""
        if isinstance(self.ci, str):
            raise _unresolved("the CI image's packages", "ci")
        return self.ci

    @property
    def is_ci_on_another_base(self) -> bool:
        """Say whether the CI image's packages were resolved on a stand-in that has moved since."""
        if isinstance(self.ci, str) or self.ci.base is not None or "stand-in" not in self.bases:
            return False
        return self.ci.base_digest != self.bases["stand-in"].digest

    def ci_files(self) -> list[LockedFile]:
        """Give every file that the CI image is made from, those of its base included."""
        ci = self.ci_image()
        base = self.base_debs("stand-in") if ci.base is None else []
        return [*base, *ci.debs, *ci.wheels]

    def _sources(self) -> dict[str, LockedSource]:
        if isinstance(self.upstream, str):
            raise _unresolved("upstream sources", "sources")
        return self.upstream

    def _resolved(self, files: Any, what: str, section: str) -> list[LockedFile]:
        if files == UNRESOLVED:
            raise _unresolved(what, section)
        return list(files)

    def _for_python(
        self, groups: Any, python_tag: str, what: str, section: str
    ) -> list[LockedFile]:
        if groups == UNRESOLVED or python_tag not in groups:
            raise _unresolved(f"{what} for {python_tag}", section)
        return list(groups[python_tag])


def _unresolved(what: str, section: str) -> Unresolved:
    return Unresolved(
        found=f"{what}: unresolved in the lock",
        expected="pinned files with their sha256",
        remedy=f"run `./inv lock --only {section}`, then commit di.lock.yaml",
    )


def _unreadable(found: str, expected: str) -> LockError:
    return LockError(
        found=found,
        expected=expected,
        remedy="take di.lock.yaml back from git, or write it again with `./inv lock`; it is not edited by hand",
    )
