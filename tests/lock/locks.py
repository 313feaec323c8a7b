"""Small locks for tests."""

from __future__ import annotations

from typing import Any

from dih20.lock import Base, Lock, LockedFile
from dih20.lock.files import LockedSource
from dih20.lock.model import Wheels


def a_file(name: str, kind: str = "wheel", version: str = "1.0", **more: Any) -> LockedFile:
    filename = {
        "wheel": f"{name.replace('-', '_')}-{version}-py3-none-any.whl",
        "sdist": f"{name.replace('-', '_')}-{version}.tar.gz",
        "deb": f"{name}_{version}_amd64.deb",
    }[kind]
    if kind == "deb":
        more = {"path": f"pool/main/{name[0]}/{name}/{filename}", "suite": "trixie", **more}
    return LockedFile(
        name=name,
        version=version,
        filename=filename,
        sha256=f"{sum(name.encode()):064x}",
        size_bytes=len(name),
        kind=kind,  # type: ignore[arg-type]  # one of the three keys above
        **more,
    )


def a_base(name: str, **more: Any) -> Base:
    settings: dict[str, Any] = {
        "name": name,
        "suite": "trixie",
        "architecture": "amd64",
        "digest": "unresolved",
        "python_tag": "cp313",
        "torch": "none",
        "glibc": "2.41",
        **more,
    }
    return Base(**settings)


def a_lock(**more: Any) -> Lock:
    settings: dict[str, Any] = {
        "image": "di-h20",
        "wants": {"wheels": "0" * 16},
        "bases": {
            "stand-in": a_base(
                "stand-in", digest=f"sha256:{1:064x}", packages=(a_file("libc6", "deb"),)
            ),
            "vllm": a_base(
                "vllm", image="vllm/vllm-openai:v0.32.0", suite="noble", python_tag="cp312"
            ),
        },
        "apt": {
            "stand-in": (a_file("git", "deb"), a_file("pciutils", "deb")),
            "vllm": "unresolved",
        },
        "wheels": Wheels(
            nccl=(a_file("nvidia-nccl-cu13", version="2.32.3"),),
            build={"cp313": (a_file("wheel"),)},
        ),
        "python": {"cp313": (a_file("einops"), a_file("numpy", version="2.3.5"))},
        "upstream": {
            "deepinfer": LockedSource(
                name="deepinfer",
                kind="sdist",
                version="0.1.0",
                file=a_file("deepinfer", "sdist", "0.1.0"),
            ),
            "mine": LockedSource(name="mine", kind="git", version="0+gabc", commit="a" * 40),
        },
        **more,
    }
    return Lock(**settings)
