"""What deploy tests put on a host: a small image, a wheel made by hand, an engine tree."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dih20.config import HostConfig
from dih20.deploy.wanted import Wanted, WantedImage, WantedTree, WantedWheel
from dih20.hosts.transfer import sha256_of
from dih20.image.archive import ImageLayers, image_layers
from tests.hosts.places import production_host

LABELS = {
    "dih20.owner": "dih20",
    "dih20.base": "stand-in",
    "dih20.role": "image",
    "dih20.lock": "l" * 64,
    "dih20.python-tag": "cp313",
    "dih20.torch": "none",
}
TAG = "di-h20:0123456789ab"


def make_image(client: Any, base: str, *, tag: str = TAG, content: str = "one\n") -> WantedImage:
    """Give an image with one layer of ours on a base, in a client's engine."""
    config = {
        "Image": base,
        "Entrypoint": [],
        "Cmd": ["/bin/sh", "-c", f"mkdir -p /opt/di && printf '{content}' >/opt/di/made"],
        "HostConfig": {"NetworkMode": "none"},
    }
    made = client.api.create_container_from_config(config)["Id"]
    client.api.start(made)
    assert client.api.wait(made)["StatusCode"] == 0
    repository, _, name = tag.partition(":")
    conf = {"Cmd": ["/bin/bash"], "Labels": LABELS}
    client.api.commit(made, repository=repository, tag=name, conf=conf)
    client.api.remove_container(made)
    return WantedImage(
        layers=replace(image_layers(client, tag), tags=(tag,)), tag=tag, labels=LABELS
    )


def make_wheel(
    folder: Path, *, name: str = "h20_sample", version: str = "1.0", body: str = ""
) -> Path:
    """Write a pure wheel with one module."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": body or f'VERSION = "{version}"\n',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{n},sha256={_digest(text)},{len(text)}\n" for n, text in files.items())
    with zipfile.ZipFile(path, "w") as archive:
        # Without a time of its own, so that the same wheel is the same file in every test.
        for file, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(zipfile.ZipInfo(file), text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def wheel_of(path: Path, **more: Any) -> WantedWheel:
    name, version = path.name.split("-")[:2]
    values: dict[str, Any] = {
        "path": path,
        "name": name,
        "version": version,
        "tags": ("py3-none-any",),
        "sha256": sha256_of(path) if path.exists() else "0" * 64,
        "imports": (name,),
        **more,
    }
    return WantedWheel(**values)


def make_tree(folder: Path) -> WantedTree:
    (folder / "deepinfer").mkdir(parents=True)
    (folder / "deepinfer" / "__init__.py").write_text("")
    script = folder / "run.sh"
    script.write_text("#!/bin/sh\necho run\n")
    script.chmod(0o755)
    return WantedTree(path=folder, identity="5" * 64)


def wanted_for(
    host: HostConfig | None = None,
    *,
    image: WantedImage | None = None,
    wheels: tuple[WantedWheel, ...] = (),
    tree: WantedTree | None = None,
    labels: Mapping[str, str] | None = None,
) -> Wanted:
    """Give a wish with defaults that need no engine: an image of three named layers."""
    layers = ImageLayers(
        image_id="sha256:" + "e" * 64, diff_ids=("sha256:a", "sha256:b", "sha256:c"), tags=(TAG,)
    )
    return Wanted(
        host=host or production_host(),
        image=image or WantedImage(layers=layers, tag=TAG, labels=LABELS),
        wheels=wheels,
        tree=tree,
        labels=labels or {"dih20.lock": "l" * 64, "dih20.patchset": "p" * 64},
        nccl="2.32.3",
    )
