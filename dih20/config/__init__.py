"""Configuration files as frozen models; the annotated files under configs/ are the manual.

load_host("nv-h20")         configs/hosts/nv-h20.yaml, or a path
load_image("di-h20")        configs/images/di-h20.yaml, or a path
load_engine()               configs/engine.yaml
load_mirrors()              configs/mirrors.yaml
load_ci()                   configs/ci.yaml: the image that CI jobs run in
"""

from __future__ import annotations

from dih20.config.ci import CiConfig
from dih20.config.engine import EngineConfig
from dih20.config.host import HostConfig, LogLimits, Mount
from dih20.config.image import ImageConfig, Source
from dih20.config.mirrors import Mirrors
from dih20.config.reading import find_config, read_config
from dih20.paths import configs_dir

__all__ = [
    "CiConfig",
    "EngineConfig",
    "HostConfig",
    "ImageConfig",
    "LogLimits",
    "Mirrors",
    "Mount",
    "Source",
    "load_ci",
    "load_engine",
    "load_host",
    "load_image",
    "load_mirrors",
]


def load_host(name_or_path: str) -> HostConfig:
    """Give a host by the name of its file in configs/hosts, or by a path."""
    return read_config(find_config(configs_dir() / "hosts", name_or_path), HostConfig)


def load_image(name_or_path: str = "di-h20") -> ImageConfig:
    """Give an image by the name of its file in configs/images, or by a path."""
    return read_config(find_config(configs_dir() / "images", name_or_path), ImageConfig)


def load_engine() -> EngineConfig:
    """Give the engine's settings."""
    return read_config(configs_dir() / "engine.yaml", EngineConfig)


def load_mirrors() -> Mirrors:
    """Give where downloads go through; without the file, everything is as pip and apt have it."""
    path = configs_dir() / "mirrors.yaml"
    return read_config(path, Mirrors) if path.exists() else Mirrors()


def load_ci() -> CiConfig:
    """Give the CI image's settings."""
    return read_config(configs_dir() / "ci.yaml", CiConfig)
