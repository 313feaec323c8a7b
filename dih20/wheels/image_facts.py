"""What an image is, as far as a wheel depends on it: asked once per image, then remembered."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.errors import WheelError
from dih20.image.archive.partial import PartialFile
from dih20.paths import build_dir, shown
from dih20.wheels.container import Job, run_job
from dih20.wheels.procedure import INSIDE

if TYPE_CHECKING:
    import docker

PLAIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What a build may see of the image's own environment; the rest is cleared.
_PASSED_ON = ("PATH", "CPATH", "CUDA_HOME", "LANG")
# What decides which libraries a process finds at run time; only imports see it.
_RUN_TIME = ("LD_LIBRARY_PATH", "LD_PRELOAD")


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """Python, compilers, torch build and NCCL folders of an image; its id is its content."""

    image_id: str
    python_tag: str
    gcc: str
    nvcc: str
    glibc: str
    torch: str
    site_packages: str
    nccl: tuple[dict[str, Any], ...]
    environment: dict[str, str]
    labels: dict[str, str]
    run_time: dict[str, str] = field(default_factory=dict)

    @property
    def has_torch(self) -> bool:
        """Say whether there is a torch to build against: one without CUDA has not the headers for it."""
        return self.torch != "none" and not self.torch.endswith("cuda none")


def facts_of(client: docker.DockerClient, image: str) -> ImageFacts:
    """Give an image's facts, from the cache when this image id was looked at before."""
    found = _inspected(client, image)
    cache = build_dir() / "image-facts" / f"{found.id.removeprefix('sha256:')}.json"
    config = found.attrs.get("Config") or {}
    if not cache.is_file():
        answer = _look(client, found.id)
        with PartialFile(cache) as out:
            out.write(json.dumps(answer, indent=1).encode())
    answer = json.loads(cache.read_text())
    environment = dict(pair.split("=", 1) for pair in config.get("Env") or [] if "=" in pair)
    return ImageFacts(
        image_id=found.id,
        python_tag=answer["python_tag"],
        gcc=answer["gcc"],
        nvcc=answer["nvcc"],
        glibc=answer["glibc"],
        torch=answer["torch"],
        site_packages=answer["site_packages"],
        nccl=tuple(answer["nccl"]),
        environment={name: environment[name] for name in _PASSED_ON if name in environment},
        labels=dict(config.get("Labels") or {}),
        run_time={name: environment[name] for name in _RUN_TIME if name in environment},
    )


def _inspected(client: docker.DockerClient, image: str) -> Any:
    from docker.errors import ImageNotFound

    try:
        return client.images.get(image)
    except ImageNotFound:
        raise WheelError(
            found=f"no image {image} in this engine",
            expected="the di-h20 image that the wheels are built in",
            remedy="run ./inv build-image, or name another one with --image",
        ) from None


def _look(client: docker.DockerClient, image: str) -> dict[str, Any]:
    log = build_dir() / "logs" / "image-facts.log"
    with tempfile.TemporaryDirectory(prefix="di-look-") as out:
        job = Job(
            argv=("sh", "-c", "python3 /di/inside/look.py >/di/out/facts.json"),
            environment={"PATH": PLAIN_PATH, "LANG": "C.UTF-8"},
            read_only={"/di/inside": INSIDE},
            writable={"/di/out": Path(out)},
            timeout_s=120,
        )
        outcome = run_job(client, image, job, log=log)
        facts = Path(out) / "facts.json"
        if outcome.exit_code != 0 or not facts.is_file():
            raise WheelError(
                found=f"{image}: python3 in the image exited {outcome.exit_code} when asked what it is",
                expected="an image with python3",
                remedy=f"see {shown(log)}, and build the image again with ./inv build-image",
            )
        answer: dict[str, Any] = json.loads(facts.read_text())
        return answer
