"""apt's own answers in a private root: closures relative to a base, and errors that name the mirror."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dih20.errors import LockError
from dih20.lock import LockedFile
from dih20.lock.apt_root import AptRoot, prepare_root
from dih20.lock.served import moved_debs
from dih20.lock.stand_in import (
    installed_status,
    package_list_digest,
    read_package_list,
    resolve_base,
)
from tests.lock.apt_fixture import small_apt


@pytest.fixture
def apt(tmp_path: Path) -> AptRoot:
    return small_apt(tmp_path)


def names(files: list[LockedFile]) -> list[str]:
    return [f.name for f in files]


def test_a_closure_on_nothing_holds_every_dependency_and_no_recommended_package(
    apt: AptRoot,
) -> None:
    assert names(apt.closure(["tool"])) == ["base", "lib", "tool"]
    assert names(apt.closure(["extra"])) == ["extra"]
    tool = apt.closure(["tool"])[-1]
    assert (tool.kind, tool.path, tool.suite) == ("deb", "pool/main/tool_1.0_amd64.deb", "trixie")


def test_what_a_base_holds_is_not_installed_again_also_when_its_version_is_needed_exactly(
    apt: AptRoot,
) -> None:
    apt.set_installed(installed_status(apt, apt.pin(["lib", "base"])))
    assert names(apt.closure(["tool"])) == ["tool"]


def test_the_machine_s_own_apt_state_is_neither_read_nor_changed(apt: AptRoot) -> None:
    before = Path("/var/lib/dpkg/status").stat()
    apt.closure(["tool"])
    assert names(apt.closure(["base"])) == ["base"], (
        "this machine's packages must not count as installed"
    )
    assert Path("/var/lib/dpkg/status").stat() == before


def test_a_package_that_the_suite_lacks_is_named(apt: AptRoot) -> None:
    with pytest.raises(LockError, match="Unable to locate package nowhere"):
        apt.closure(["tool", "nowhere"])


def test_a_mirror_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with pytest.raises(LockError) as fault:
        prepare_root(
            tmp_path / "root",
            "trixie",
            "amd64",
            "http://127.0.0.1:9/debian",
            source="[trusted=yes]",
            retries=0,
        )
    assert "127.0.0.1:9" in str(fault.value)
    assert "apt: trixie: in configs/mirrors.yaml" in fault.value.remedy


def test_a_mirror_without_a_valid_signature_is_refused(tmp_path: Path, apt: AptRoot) -> None:
    keyring = tmp_path / "empty.gpg"
    keyring.write_bytes(b"")
    with pytest.raises(LockError) as fault:
        prepare_root(
            tmp_path / "second", "trixie", "amd64", apt.mirror, source=f"[signed-by={keyring}]"
        )
    assert "not signed" in fault.value.found


def test_debootstrap_s_own_error_lines_are_shown(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    root = AptRoot(
        folder=tmp_path, suite="trixie", architecture="amd64", mirror=f"file://{tmp_path}/empty"
    )
    with pytest.raises(LockError, match=r"debootstrap --print-debs exited \d+: [EW]:"):
        resolve_base(root, ["python3"])


def test_a_package_list_is_names_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "packages.txt"
    path.write_text("# why\nzlib1g\n\nbash  # the shell\nbash\n")
    assert read_package_list(path) == ["bash", "zlib1g"]
    with pytest.raises(LockError, match="no package list"):
        read_package_list(tmp_path / "none.txt")


def test_the_digest_of_a_base_follows_every_package_and_not_their_order(apt: AptRoot) -> None:
    files = apt.pin(["lib", "base"])
    assert package_list_digest(files) == package_list_digest(files[::-1])
    changed = [files[0].model_copy(update={"version": "1.0-2"}), files[1]]
    assert package_list_digest(changed) != package_list_digest(files)


def test_a_package_whose_version_or_content_moved_at_the_mirror_is_named(apt: AptRoot) -> None:
    lib, base = apt.pin(["lib", "base"])[::-1]
    assert moved_debs([lib, base], apt) == []
    older = lib.model_copy(update={"version": "0.9"})
    assert moved_debs([older, base], apt) == ["lib: lock says 0.9, mirror now 1.0"]
    other = lib.model_copy(update={"sha256": "f" * 64})
    assert moved_debs([other], apt) == [f"lib: lock says {'f' * 64}, mirror now {lib.sha256}"]
    gone = lib.model_copy(update={"name": "nowhere"})
    assert moved_debs([gone, base], apt) == ["nowhere: lock says 1.0, mirror has none"]


def test_debootstrap_and_apt_are_here_so_that_these_tests_mean_something() -> None:
    for command in (["apt-get", "--version"], ["/usr/sbin/debootstrap", "--version"]):
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0
