"""A registry base through a real engine: its digest, and apt packages relative to what is in it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import FetchError, Unresolved
from dih20.fetch.base_image import fetch_base_image
from dih20.lock import Base
from dih20.lock.base_pins import apt_closure
from dih20.lock.registry import EngineRegistry
from tests.index.fixtures import StartIndex
from tests.index.local_index import LocalIndex
from tests.lock.apt_fixture import small_apt

pytestmark = pytest.mark.docker

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
STATUS = "Package: base\nVersion: 1.0\nArchitecture: amd64\nInstalled-Size: 10\nStatus: install ok installed\n"


def push_image(registry: LocalIndex, tag: str, status: str) -> str:
    """Put an image with one file, a dpkg status, into a registry on loopback; give its digest."""

    def blob(content: bytes, kind: str) -> dict[str, Any]:
        digest = "sha256:" + hashlib.sha256(content).hexdigest()
        registry.answers[f"/v2/team/base/blobs/{digest}"] = (
            200,
            {"Docker-Content-Digest": digest},
            content,
        )
        return {"mediaType": kind, "size": len(content), "digest": digest}

    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for folder in ("var", "var/lib", "var/lib/dpkg"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        info = tarfile.TarInfo("var/lib/dpkg/status")
        info.size = len(status.encode())
        tar.addfile(info, io.BytesIO(status.encode()))
    diff_id = "sha256:" + hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "config": {},
    }
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": blob(
                json.dumps(config).encode(), "application/vnd.docker.container.image.v1+json"
            ),
            "layers": [blob(layer.getvalue(), "application/vnd.docker.image.rootfs.diff.tar")],
        }
    ).encode()
    digest = "sha256:" + hashlib.sha256(manifest).hexdigest()
    headers = {"Docker-Content-Digest": digest, "Content-Type": MANIFEST}
    registry.answers["/v2/"] = (200, {"Docker-Distribution-Api-Version": "registry/2.0"}, b"{}")
    for reference in (tag, digest):
        registry.answers[f"/v2/team/base/manifests/{reference}"] = (200, headers, manifest)
    return digest


class Roots:
    """Stands for AptRoots: one suite, whose mirror is a folder."""

    def __init__(self, folder: Path) -> None:
        self.apt = small_apt(folder)

    def root(self, suite: str, architecture: str) -> Any:
        return self.apt


def test_the_engine_says_what_a_tag_is_and_that_another_digest_is_not_there(
    engine: Any, start_index: StartIndex
) -> None:
    registry = start_index()
    digest = push_image(registry, "v1", STATUS)
    through = EngineRegistry(engine)
    repository = f"127.0.0.1:{registry.port}/team/base"
    assert through.digest_of(repository, "v1") == digest
    assert through.digest_of(repository, digest) == digest
    assert through.digest_of(repository, f"sha256:{0:064x}") is None


def test_apt_packages_are_resolved_against_the_packages_in_the_pulled_base(
    ui: Console,
    engine: Any,
    private_engine: Any,
    start_index: StartIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = start_index()
    digest = push_image(registry, "v1", STATUS)
    base = registry_base(registry, digest)
    roots: Any = Roots(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", private_engine.url)
    with pytest.raises(
        Unresolved, match=f"no engine here holds 127.0.0.1:{registry.port}/team/base@{digest}"
    ):
        apt_closure(base, ["tool"], roots)
    fetch_base_image(ui, base)
    assert ui.steps[-1].status == "miss"
    fetch_base_image(ui, base)
    assert ui.steps[-1].status == "hit"
    assert [f.name for f in apt_closure(base, ["tool"], roots)] == ["lib", "tool"]
    assert engine.containers.list(all=True, filters={"ancestor": base.reference}) == []


def test_a_base_whose_digest_is_gone_is_an_error_and_its_tag_is_not_pulled(
    ui: Console,
    engine: Any,
    private_engine: Any,
    start_index: StartIndex,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = start_index()
    push_image(registry, "v1", STATUS)
    monkeypatch.setenv("DOCKER_HOST", private_engine.url)
    base = registry_base(registry, f"sha256:{5:064x}")
    with pytest.raises(FetchError, match=r"could not be pulled: .*manifest unknown") as fault:
        fetch_base_image(ui, base)
    assert "the tag is never taken in its place" in fault.value.expected
    assert registry.asked("/manifests/v1") == []


def registry_base(registry: LocalIndex, digest: str) -> Base:
    return Base(
        name="vllm",
        image=f"127.0.0.1:{registry.port}/team/base:v1",
        suite="trixie",
        architecture="amd64",
        digest=digest,
        python_tag="cp312",
        torch="2.13.0+cu130",
        glibc="2.39",
    )
