"""What the lock pins: files, sources and bases, as frozen values."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from dih20.errors import Unresolved

UNRESOLVED: Final = "unresolved"
OWN: Final = "own"  # the name of a base of the user's, for the CI image

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Digest = Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64}|unresolved)$")]


class Pinned(BaseModel):
    """Base of all lock models: frozen, and no key that the model does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class LockedFile(Pinned):
    """One file by its sha256.

    Args:
        path: for a deb, where it lies below a mirror's root ("pool/main/g/git/git_...deb").
        suite: for a deb, the suite whose mirrors hold it.
    """

    name: str
    version: str
    filename: str
    sha256: Sha256
    size_bytes: Annotated[int, Field(gt=0)]
    kind: Literal["wheel", "sdist", "deb"]
    path: str | None = None
    suite: str | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class LockedSource(Pinned):
    """One upstream tree: an sdist by its hash, a git tree by its commit, or a path as it is."""

    name: str
    kind: Literal["sdist", "git", "path"]
    version: Annotated[str, Field(min_length=1)]
    file: LockedFile | None = None
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None


class Base(Pinned):
    """What the di-h20 image stands on.

    Args:
        digest: of the image in its registry, or over the package list of a base made here.
        packages: for a base made here, every package of it; empty for a registry base.
    """

    name: str
    image: str | None = None
    suite: str
    architecture: Literal["amd64", "arm64"]
    digest: Digest
    python_tag: Annotated[str, Field(pattern=r"^cp3\d+$")]
    torch: str
    glibc: Annotated[str, Field(pattern=r"^2\.\d+$")]
    packages: tuple[LockedFile, ...] = ()

    @property
    def is_stand_in(self) -> bool:
        return self.image is None

    @property
    def is_resolved(self) -> bool:
        return self.digest != UNRESOLVED

    @property
    def reference(self) -> str:
        """Give what a registry base is pulled by: repository@digest, never the tag."""
        digest = self.require_digest()
        assert self.image is not None, f"base {self.name} is made here and is not pulled"
        return f"{self.image.rsplit(':', 1)[0]}@{digest}"

    def require_digest(self) -> str:
        """Give the digest, or raise Unresolved that names the command that resolves it."""
        if self.is_resolved:
            return self.digest
        raise Unresolved(
            found=f"the digest of base {self.name!r} ({self.image or self.suite}) is unresolved in the lock",
            expected="a sha256 digest, from the registry or an engine that holds the image",
            remedy="run `./inv lock --only base` where the registry is reachable, then commit di.lock.yaml",
        )


class CiImage(Pinned):
    """The CI image's own pins. They are no input of the di-h20 image, so the lock's identity leaves them out.

    Args:
        base: what it stands on; None for the stand-in of `bases`.
        base_digest: of that base, when `debs` were resolved.
        wheels: the files of requirements/*.lock for the python of that base.
    """

    base: Base | None = None
    base_digest: Digest
    debs: tuple[LockedFile, ...]
    wheels: tuple[LockedFile, ...]
