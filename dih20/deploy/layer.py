"""Install wheels and the engine tree on top of the image, on the host, as one layer.

A container of the image runs one script without network; wheels and tree are mounted read-only, so
none of their files stays in the layer. What comes out is committed under the run-time tag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.deploy.container import ENGINE_TREE, OWNER
from dih20.deploy.wanted import Wanted
from dih20.errors import DeployError

if TYPE_CHECKING:
    import docker

_TIMEOUT_S = 1800
_WHEELS, _TREE = "/mnt/dih20-wheels", "/mnt/dih20-tree.tar.gz"
# $1: yes when there is a tree; the rest: wheel files. Its variables are set here and not in the
# container's configuration, which a commit would carry into the image.
_INSTALL = f"""
export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_INPUT=1
tree=$1
shift
if [ "$tree" = yes ]; then
    rm -rf {ENGINE_TREE}
    mkdir -p {ENGINE_TREE}
    tar -xzf {_TREE} -C {ENGINE_TREE} --no-same-owner
fi
if [ "$#" -gt 0 ]; then
    python3 -m pip install --no-index --no-deps --force-reinstall --no-cache-dir --no-compile \\
        --disable-pip-version-check --root-user-action=ignore "$@"
fi
"""


def make_layer(ui: Console, client: docker.DockerClient, wanted: Wanted) -> str:
    """Give the id of the run-time image on the host, after making it."""
    with ui.step("install", f"{len(wanted.wheels)} wheels as {wanted.runtime_tag}") as step:
        base = client.images.get(wanted.image.tag)
        created: dict[str, Any] = client.api.create_container_from_config(  # type: ignore[no-untyped-call]
            _install_config(wanted)
        )
        container = created["Id"]
        try:
            client.api.start(container)
            code = client.api.wait(container, timeout=_TIMEOUT_S)["StatusCode"]
            if code != 0:
                raise _failed(
                    wanted, code, client.api.logs(container, tail=25).decode("utf-8", "replace")
                )
            made = client.api.commit(
                container,
                repository=wanted.runtime_tag.rpartition(":")[0],
                tag=wanted.runtime_tag.rpartition(":")[2],
                message="dih20 wheels",
                conf=_image_config(wanted, base.attrs.get("Config") or {}),
            )
        finally:
            client.api.remove_container(container, force=True)
        step.note = str(made["Id"]).removeprefix("sha256:")[:12]
        return str(made["Id"])


def _install_config(wanted: Wanted) -> dict[str, Any]:
    mounts = [_read_only(wanted.remote("wheels"), _WHEELS)] if wanted.wheels else []
    if wanted.tree:
        mounts.append(_read_only(wanted.remote("trees", wanted.tree.remote_name), _TREE))
    files = [f"{_WHEELS}/{wheel.remote_name}" for wheel in wanted.wheels]
    return {
        "Image": wanted.image.tag,
        "User": "0",
        "Entrypoint": [],
        "Cmd": ["/bin/sh", "-euc", _INSTALL, "sh", "yes" if wanted.tree else "no", *files],
        "Labels": {"dih20.owner": OWNER, "dih20.role": "install"},
        "HostConfig": {
            "NetworkMode": "none",
            "Mounts": mounts,
            "Tmpfs": {"/mnt": ""},  # else the mount points would stay in the layer
            "Privileged": False,
        },
    }


def _read_only(source: str, target: str) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}


def _image_config(wanted: Wanted, base: dict[str, Any]) -> dict[str, Any]:
    """Keep what the image said of itself; the install container's own command must not stay."""
    return {
        "Entrypoint": base.get("Entrypoint") or [],
        "Cmd": base.get("Cmd") or ["/bin/sh"],
        "Env": base.get("Env") or [],
        "User": base.get("User") or "",
        "WorkingDir": base.get("WorkingDir") or "",
        "Labels": {
            **(base.get("Labels") or {}),
            "dih20.role": "runtime",
            "dih20.wheels": wanted.wheel_set,
            "dih20.engine-tree": wanted.tree.identity if wanted.tree else "none",
        },
    }


def _failed(wanted: Wanted, code: int, log: str) -> DeployError:
    return DeployError(
        found=f"installing {len(wanted.wheels)} wheels on {wanted.host.name} exited {code}:\n{log.rstrip()}",
        expected="pip to install every wheel of the set offline into the image's python",
        remedy="mend what pip names; `./inv build-vendor` makes wheels for exactly this image",
    )
