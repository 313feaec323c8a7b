"""Find the folders in which an overlay2 engine on this machine keeps an image's layers.

Reading them costs what our own layers cost; the engine's save stream would first copy the base,
many gigabytes of it. Only root on the engine's own machine may; for all others this gives None.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.image.archive.raw_layer import FolderLayer, may_read_folders

if TYPE_CHECKING:
    import docker


def layer_folders(client: docker.DockerClient, image: str) -> dict[str, FolderLayer] | None:
    """Give diff id -> layer, or None when this engine's folders cannot be read or mean something else."""
    if not may_read_folders():
        return None
    paths = folder_paths(client.info(), client.images.get(image).attrs)
    if paths is None or not all(Path(path).is_dir() for path in paths.values()):
        return None
    return {diff_id: FolderLayer(Path(path)) for diff_id, path in paths.items()}


def folder_paths(info: dict[str, Any], image: dict[str, Any]) -> dict[str, str] | None:
    """Give diff id -> path on the engine's machine; None unless a folder is exactly its layer.

    It is not where owners are shifted (user namespaces, rootless) or where the kernel keeps parts of
    a file or its old name elsewhere (metacopy, redirects: the engine then says it diffs by itself).
    """
    status = {
        str(pair[0]): str(pair[1]) for pair in info.get("DriverStatus") or [] if len(pair) == 2
    }
    options = " ".join(info.get("SecurityOptions") or [])
    plain = status.get("Native Overlay Diff") == "true" and status.get("userxattr") != "true"
    if info.get("Driver") != "overlay2" or not plain:
        return None
    if "name=userns" in options or "name=rootless" in options:
        return None
    data = (image.get("GraphDriver") or {}).get("Data") or {}
    folders = [data.get("UpperDir") or "", *(data.get("LowerDir") or "").split(":")]
    folders = [folder for folder in folders if folder]
    layers = list((image.get("RootFS") or {}).get("Layers") or [])
    if len(folders) != len(layers):
        return None
    return dict(zip(layers, reversed(folders), strict=True))
