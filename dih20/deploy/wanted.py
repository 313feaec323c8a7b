"""What is to stand on a host: an image, the wheels and the engine tree for it, and the container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dih20.deploy.container import ContainerSpec, container_spec, digest_of
from dih20.errors import WheelError
from dih20.image.archive import ImageLayers

if TYPE_CHECKING:
    from dih20.config import HostConfig


@dataclass(frozen=True, kw_only=True)
class WantedImage:
    """The di-h20 image on this machine."""

    layers: ImageLayers
    tag: str
    labels: Mapping[str, str]

    @property
    def python_tag(self) -> str:
        return self.labels.get("dih20.python-tag", "")

    @property
    def torch(self) -> str:
        return self.labels.get("dih20.torch", "none")


@dataclass(frozen=True, kw_only=True)
class WantedWheel:
    """A wheel to install; `imports` are the modules that must import afterwards."""

    path: Path
    name: str
    version: str
    tags: tuple[str, ...]
    sha256: str
    torch: str = "none"
    imports: tuple[str, ...] = ()

    @property
    def remote_name(self) -> str:
        """Give its place below the host's wheel folder: the hash keeps equal names apart."""
        return f"{self.sha256[:16]}/{self.path.name}"


@dataclass(frozen=True, kw_only=True)
class WantedTree:
    """The patched engine tree, for an image without a deepinfer wheel."""

    path: Path
    identity: str

    @property
    def remote_name(self) -> str:
        return f"{self.identity[:32]}.tar.gz"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Everything a deploy to one host puts there; nccl is the locked version, for the checks inside."""

    host: HostConfig
    image: WantedImage
    wheels: tuple[WantedWheel, ...]
    tree: WantedTree | None
    labels: Mapping[str, str]
    nccl: str = ""

    @property
    def has_layer(self) -> bool:
        """Say whether anything is installed on top of the image."""
        return bool(self.wheels or self.tree)

    @property
    def wheel_set(self) -> str:
        """Give the hash over what is installed on top of the image; "none" for nothing."""
        if not self.has_layer:
            return "none"
        tree = self.tree.identity if self.tree else ""
        return digest_of({"wheels": sorted(w.sha256 for w in self.wheels), "tree": tree})

    @property
    def runtime_tag(self) -> str:
        """Give the name of the image the container runs from; it is made on the host."""
        return f"{self.image.tag}-{self.wheel_set[:8]}" if self.has_layer else self.image.tag

    @property
    def container(self) -> ContainerSpec:
        layers = digest_of(self.image.layers.diff_ids)
        return container_spec(
            self.host,
            image=self.runtime_tag,
            labels={**self.labels, "dih20.wheels": self.wheel_set, "dih20.layers": layers},
        )

    @property
    def config(self) -> str:
        """Give the hash that tells whether a running container is what is wanted."""
        return str(self.container.config["Labels"]["dih20.config"])

    def remote(self, *parts: str) -> str:
        """Give a path below the host's work_dir."""
        return "/".join((self.host.work_dir, *parts))


def require_fitting(image: WantedImage, wheels: Sequence[WantedWheel]) -> None:
    """Raise WheelError for a wheel of another python or another torch build than the image's."""
    for wheel in wheels:
        pythons = {tag.split("-")[0] for tag in wheel.tags}
        if not pythons & {image.python_tag, "py3"} and not _is_stable(wheel, image.python_tag):
            raise WheelError(
                found=f"{wheel.path.name} is for {', '.join(sorted(pythons))}",
                expected=f"{image.python_tag}, the python of {image.tag}",
                remedy=f"run `./inv build-vendor --only {wheel.name}` for this image",
            )
        if wheel.torch != "none" and wheel.torch != image.torch:
            raise WheelError(
                found=f"{wheel.path.name} was built against torch {wheel.torch}",
                expected=f"torch {image.torch}, the build in {image.tag}: its C++ symbols differ from build to build",
                remedy=f"run `./inv build-vendor --only {wheel.name}` for this image",
            )


def _is_stable(wheel: WantedWheel, python_tag: str) -> bool:
    """Say whether the wheel keeps to the stable ABI of this python or an older one."""
    minor = int(python_tag[3:] or 0) if python_tag.startswith("cp3") else 0
    for tag in wheel.tags:
        python, abi, _ = tag.split("-", 2)
        if abi == "abi3" and python.startswith("cp3") and int(python[3:]) <= minor:
            return True
    return False
