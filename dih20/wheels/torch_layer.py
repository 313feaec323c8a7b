"""torch on an image that has none, as one layer: what the vendors' wheels are compiled against here.

The vLLM base brings its torch. The stand-in has none, so `./inv rehearse --vendor` puts the lock's
torch on it, then the locked NCCL in place of the one that torch brings.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dih20.console import Console
from dih20.errors import ImageError
from dih20.fetch import cached
from dih20.image.output_lines import lines_of
from dih20.lock import Lock, LockedFile
from dih20.paths import build_dir, cache_dir, shown
from dih20.wheels.container import OWNER_LABEL
from dih20.wheels.identity import digest_of
from dih20.wheels.image_facts import facts_of

if TYPE_CHECKING:
    import docker

TAG = "di-h20-torch"
_INSTALL = """set -e
pip="python3 -m pip install --no-index --no-deps --no-compile --no-cache-dir --break-system-packages"
export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
$pip --quiet /di/torch/*.whl
echo "== the locked NCCL in place of torch's"
$pip --quiet --force-reinstall /di/nccl/*.whl
cd /tmp
python3 - <<'END'
import re, torch
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "libnccl.so" in line}
print("torch", torch.__version__, torch.version.git_version, "maps", sorted(mapped))
END
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
    from docker.errors import DockerException
    from docker.types import Mount

    log = build_dir() / "logs" / f"torch-layer-{tag.rpartition(':')[2]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    cache_dir().mkdir(parents=True, exist_ok=True)
    # Beside the cache, so that the gigabytes are linked and not copied.
    with tempfile.TemporaryDirectory(prefix="torch-", dir=cache_dir()) as folder:
        for name, files in (("torch", torch), ("nccl", [nccl])):
            (Path(folder) / name).mkdir()
            for file in files:
                _link(cached(file), Path(folder) / name / file.filename)
        mounts = [Mount("/di", folder, type="bind", read_only=True)]
        container = client.containers.create(
            image,
            entrypoint=["sh", "-c", _INSTALL],
            command=[],
            user="0:0",
            network_mode="none",
            mounts=mounts,
            labels=OWNER_LABEL,
        )
        try:
            container.start()
            with log.open("w") as out:
                for line in lines_of(container.logs(stream=True, follow=True)):
                    out.write(line + "\n")
                    ui.line(f"    {line[:200]}", style="dim")
            code = int(container.wait()["StatusCode"])
            if code != 0:
                raise ImageError(
                    found=f"the torch layer's install exited {code}",
                    expected="torch and the locked NCCL installed, without network",
                    remedy=f"see {shown(log)}",
                )
            repository, version = tag.split(":")
            config = client.images.get(image).attrs["Config"]
            changes = [
                f"CMD {_json(config.get('Cmd') or ['/bin/sh'])}",
                f"ENTRYPOINT {_json(config.get('Entrypoint') or [])}",
                f"LABEL dih20.torch={_version_of(torch)}",
            ]
            container.commit(repository=repository, tag=version, changes=changes)
        finally:
            with contextlib.suppress(DockerException):
                container.remove(force=True)


def _version_of(wheels: Sequence[LockedFile]) -> str:
    return next(wheel.version for wheel in wheels if wheel.name == "torch")


def _json(value: object) -> str:
    import json

    return json.dumps(value)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
