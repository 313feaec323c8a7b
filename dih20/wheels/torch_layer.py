"""torch on an image that has none, as one layer: what the vendors' wheels are compiled against here.

The vLLM base brings its torch. The stand-in has none, so `./inv rehearse --vendor` puts the lock's
torch on it, then the locked NCCL in place of the one that torch brings.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dih20.console import Console
from dih20.fetch import cached
from dih20.image.build_session import ended_by_signal, only_build
from dih20.image.inside import nccl as nccl_check
from dih20.image.run_step import StepRun, run_step
from dih20.lock import Lock, LockedFile
from dih20.paths import build_dir, cache_dir
from dih20.wheels.identity import digest_of
from dih20.wheels.image_facts import facts_of

if TYPE_CHECKING:
    import docker

TAG = "di-h20-torch"
_INSTALL = """pip="python3 -m pip install --no-index --no-deps --no-compile --no-cache-dir --break-system-packages"
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
$pip --quiet /mnt/torch/*.whl
echo "== the locked NCCL in place of torch's"
$pip --quiet --force-reinstall /mnt/nccl/*.whl
python3 /mnt/nccl.py --expect /mnt/nccl.version
"""


def tag_of(client: docker.DockerClient, image: str, lock: Lock) -> str:
    """Give the tag that the image with torch on it has; the image itself when it has torch."""
    facts = facts_of(client, image)
    if facts.has_torch:
        return image
    wheels = [*_without_nccl(lock, facts.python_tag), lock.nccl()]
    return f"{TAG}:{digest_of([facts.image_id, *(wheel.sha256 for wheel in wheels)])[:12]}"


def with_torch(ui: Console, client: docker.DockerClient, image: str, lock: Lock) -> str:
    """Give the tag of the image with torch on it; the layer is made once per image and set of wheels."""
    tag = tag_of(client, image, lock)
    if tag == image:
        return image
    facts = facts_of(client, image)
    with ui.step("layer", f"torch on {image}") as step:
        if is_there(client, tag):
            step.status, step.note = "hit", tag
            return tag
        torch = _without_nccl(lock, facts.python_tag)
        _make(ui, client, facts.image_id, tag, torch, lock.nccl())
        step.status, step.note = "miss", tag
    return tag


def _without_nccl(lock: Lock, python_tag: str) -> list[LockedFile]:
    return [wheel for wheel in lock.torch_wheels(python_tag) if wheel.name != lock.nccl().name]


def is_there(client: docker.DockerClient, tag: str) -> bool:
    """Say whether the engine holds the tag."""
    from docker.errors import ImageNotFound

    try:
        client.images.get(tag)
    except ImageNotFound:
        return False
    return True


def _make(
    ui: Console,
    client: docker.DockerClient,
    image: str,
    tag: str,
    torch: Sequence[LockedFile],
    nccl: LockedFile,
) -> None:
    log = build_dir() / "logs" / f"torch-layer-{tag.rpartition(':')[2]}.log"
    with only_build(client) as holder, ended_by_signal(), _inputs(torch, nccl) as folder:
        run = StepRun(
            number=1,
            count=1,
            name="torch",
            parent=image,
            folder=folder,
            env={},
            log=log,
            holder=holder,
        )
        made = run_step(ui, client, run, {"dih20.torch": _version_of(torch)})
    repository, _, version = tag.rpartition(":")
    client.images.get(made).tag(repository, version)


@contextlib.contextmanager
def _inputs(torch: Sequence[LockedFile], nccl: LockedFile) -> Iterator[Path]:
    """Give the folder that the step sees; beside the cache, so that gigabytes are linked, not copied."""
    parent = cache_dir() / "staging"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="torch-", dir=parent) as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "step.sh").write_text(_INSTALL)
        (folder / "nccl.version").write_text(nccl.version + "\n")
        shutil.copyfile(nccl_check.__file__, folder / "nccl.py")
        for group, files in (("torch", torch), ("nccl", [nccl])):
            (folder / group).mkdir()
            for file in files:
                _link(cached(file), folder / group / file.filename)
        yield folder


def _version_of(wheels: Sequence[LockedFile]) -> str:
    return next(wheel.version for wheel in wheels if wheel.name == "torch")


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
