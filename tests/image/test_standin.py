"""The stand-in base has the same bytes each time, says what it is, and is made only once."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import FetchError, ImageError
from dih20.image import debootstrap, standin
from dih20.image.rootfs_tar import FIXED_MTIME, write_rootfs
from dih20.lock import Lock


def small_root(folder: Path, *, noise: str) -> Path:
    """A root file system as debootstrap leaves it; `noise` is what differs from run to run."""
    files = {
        "usr/bin/tool": "#!/bin/sh\n",
        "usr/share/doc/tool/copyright": "free\n",
        "usr/share/doc/tool/changelog": noise,
        "usr/share/man/man1/tool.1": noise,
        "etc/machine-id": noise,
        "etc/hostname": noise,
        "etc/resolv.conf": noise,
        "etc/apt/sources.list": f"deb http://{noise}.example trixie main\n",
        "etc/ssh/ssh_host_ed25519_key": noise,
        "etc/shadow": f"root:*:{len(noise) + 20000}:0:99999:7:::\n",
        "etc/shadow-": noise,
        "var/log/dpkg.log": noise,
        "var/cache/apt/pkgcache.bin": noise,
        "var/lib/apt/lists/mirror_Packages": noise,
        "var/lib/dpkg/status": "Package: tool\n",
        "var/lib/dpkg/status-old": noise,
        "tmp/left": noise,
        "dev/null": noise,
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        os.utime(path, (len(noise), len(noise)))
    (folder / "usr/bin/tool").chmod(0o755)
    (folder / "bin").symlink_to("usr/bin")
    os.link(folder / "usr/bin/tool", folder / "usr/bin/tool-again")
    return folder


def packed(root: Path) -> bytes:
    out = io.BytesIO()
    write_rootfs(root, out)
    return out.getvalue()


def test_two_runs_at_other_times_on_other_machines_give_the_same_bytes(tmp_path: Path) -> None:
    first = packed(small_root(tmp_path / "a", noise="monday"))
    second = packed(small_root(tmp_path / "b", noise="a machine far away"))
    assert first == second


def test_what_differs_is_left_out_and_what_counts_is_kept(tmp_path: Path) -> None:
    data = packed(small_root(tmp_path, noise="secret"))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = {member.name: member for member in tar}
        content = tar.extractfile("usr/bin/tool")
        assert content is not None
        assert content.read() == b"#!/bin/sh\n"
    assert b"secret" not in data
    assert {"usr/share/doc/tool/copyright", "var/lib/dpkg/status", "bin", "tmp", "dev"} <= set(
        members
    )
    assert not {"etc/ssh/ssh_host_ed25519_key", "var/log/dpkg.log", "dev/null"} & set(members)
    assert members["usr/bin/tool"].mode == 0o755
    assert members["tmp"].mode == 0o1777
    assert members["bin"].linkname == "usr/bin"
    assert members["usr/bin/tool-again"].islnk()
    assert {member.mtime for member in members.values()} == {FIXED_MTIME}
    assert list(members) == sorted(members, key=lambda name: name.split("/"))


def test_another_content_gives_other_bytes(tmp_path: Path) -> None:
    first = small_root(tmp_path / "a", noise="x")
    second = small_root(tmp_path / "b", noise="x")
    (second / "usr/bin/tool").chmod(0o700)
    assert packed(first) != packed(second)


def test_the_key_follows_the_locked_packages() -> None:
    base = Lock.load().base("stand-in")
    other = base.model_copy(update={"digest": "sha256:" + "0" * 64})
    assert standin.key_of(base) == standin.key_of(base.model_copy())
    assert standin.key_of(base) != standin.key_of(other)


def test_without_root_the_base_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ImageError, match="user id 1000") as caught:
        debootstrap.check_machine()
    assert "root" in caught.value.remedy


def test_without_debootstrap_the_package_to_install_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    with pytest.raises(ImageError) as caught:
        debootstrap.check_machine()
    assert caught.value.remedy == "apt-get install debootstrap"


def test_packages_that_were_not_fetched_are_asked_for_by_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DI_CACHE", str(tmp_path))
    monkeypatch.setattr(debootstrap, "check_machine", lambda: None)
    with pytest.raises(FetchError) as caught:
        standin.rootfs(Console(as_json=True), Lock.load())
    assert "./inv fetch" in caught.value.remedy
    assert [p.name for p in (tmp_path / "stand-in").iterdir() if p.suffix != ".guard"] == []


def test_debootstrap_errors_come_with_its_own_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin" / "debootstrap"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/sh\necho 'I: Retrieving Release'\necho 'E: Invalid Release file' >&2\nexit 1\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    log = tmp_path / "logs" / "stand-in.log"
    with pytest.raises(ImageError, match="E: Invalid Release file") as caught:
        debootstrap.bootstrap(
            Console(as_json=True),
            suite="trixie",
            architecture="amd64",
            packages=["python3"],
            mirror=tmp_path,
            root=tmp_path / "root",
            log=log,
        )
    assert "stand-in.log" in caught.value.remedy
    assert "I: Retrieving Release" in log.read_text()


def test_a_scratch_root_is_gone_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), debootstrap.scratch_root(tmp_path) as root:
        (root / "file").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.docker
def test_the_base_says_that_it_is_a_stand_in(engine: Any, standin_image: str) -> None:
    attributes = engine.images.get(standin_image).attrs
    labels = attributes["Config"]["Labels"]
    assert labels["dih20.base"] == "stand-in"
    assert labels["dih20.torch"] == "none"
    assert labels["dih20.python-tag"] == "cp313"
    assert attributes["RootFS"]["Layers"] == [standin.rootfs(Console(as_json=True)).diff_id]


@pytest.mark.docker
def test_the_base_has_the_python_and_the_compiler_that_builds_need(
    engine: Any, standin_image: str
) -> None:
    script = "python3 -V; gcc -dumpversion; make -v | head -1; ninja --version; python3 -m pip -V"
    output = engine.containers.run(
        standin_image, ["sh", "-ec", script], network_mode="none", remove=True
    ).decode()
    assert "Python 3.13" in output
    assert "\n14\n" in output
    assert "pip 2" in output


@pytest.mark.docker
def test_running_python_writes_no_byte_code_into_a_layer(engine: Any, standin_image: str) -> None:
    container = engine.containers.create(
        standin_image, ["python3", "-m", "pip", "download", "--help"], network_mode="none"
    )
    try:
        container.start()
        assert container.wait()["StatusCode"] == 0
        written = [change["Path"] for change in container.diff() or []]
    finally:
        container.remove(force=True)
    assert [path for path in written if path.endswith(".pyc")] == []


@pytest.mark.docker
def test_nothing_of_this_machine_is_in_the_base(engine: Any, standin_image: str) -> None:
    script = "cat /etc/apt/sources.list; ls /var/log /var/cache /var/lib/apt/lists"
    output = engine.containers.run(
        standin_image, ["sh", "-ec", script], network_mode="none", remove=True
    ).decode()
    assert set(output.split()) == {"/var/log:", "/var/cache:", "/var/lib/apt/lists:"}


@pytest.mark.docker
def test_a_second_load_is_a_hit_in_under_two_seconds(engine: Any, standin_image: str) -> None:
    ui = Console(as_json=True)
    started = time.monotonic()
    assert standin.load(ui, engine) == standin_image
    assert time.monotonic() - started < 2.0
    assert [step.status for step in ui.steps] == ["hit", "hit"]
