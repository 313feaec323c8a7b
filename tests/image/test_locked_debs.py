"""A step installs the locked Debian packages, all of them and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dih20.console import Console
from dih20.errors import HashMismatch, ImageError, LockError
from dih20.image.build import BuiltImage, build_image
from dih20.image.package_changes import installed_in
from dih20.image.steps import Step
from dih20.lock import Lock, LockedFile
from dih20.paths import REPOSITORY
from tests.image.small_debs import make_deb

pytestmark = pytest.mark.docker

DPKG = REPOSITORY / "images/di-h20/lib/dpkg.sh"
INSTALL = "set -eu\n. /mnt/lib/dpkg.sh\ninstall_debs /mnt/debs\n"
Build = Callable[..., BuiltImage]


@pytest.fixture
def debs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that stands where the download cache stands."""
    folder = tmp_path / "debs"
    folder.mkdir()
    monkeypatch.setattr("dih20.image.inputs.cached", lambda file: folder / file.filename)
    return folder


@pytest.fixture
def build(engine: Any, standin_image: str, stand_in_config: Any) -> Build:
    """Build steps on the stand-in with these packages locked on it."""

    def run(ui: Console, *steps: Step, debs: list[LockedFile]) -> BuiltImage:
        lock = Lock.load()
        lock = lock.model_copy(update={"apt": {**lock.apt, "stand-in": tuple(debs)}})
        return build_image(ui, engine, stand_in_config, lock, steps=steps)

    return run


def step(make_step: Any, name: str, script: str = INSTALL, *uses: Path) -> Step:
    made: Step = make_step(name, script, inputs=("debs",), uses=(DPKG, *uses))
    return made


def test_the_locked_packages_are_installed_at_their_versions(
    ui: Console, build: Build, make_step: Any, debs: Path, engine: Any
) -> None:
    locked = [
        make_deb(debs, "tool", extra="Depends: lib (>= 2), python3:any, missing | lib\n"),
        make_deb(debs, "lib", "2.1"),
    ]
    image = build(ui, step(make_step, "10-good"), debs=locked)
    present = {str(p) for p in installed_in(engine, image.id).values()}
    assert {"tool 1.0", "lib 2.1"} <= present
    checks = [s for s in ui.steps if s.verb == "check"]
    assert [s.target for s in checks] == ["dependencies of 2 locked packages"]


def test_a_package_whose_content_is_not_the_locked_one_is_fatal_and_nothing_is_installed(
    ui: Console, build: Build, make_step: Any, debs: Path, engine: Any
) -> None:
    locked = [make_deb(debs, "first"), make_deb(debs, "other")]
    make_deb(debs, "other", extra="Section: games\n")  # the same name and version, other bytes
    before = len(engine.images.list(all=True))
    with pytest.raises(HashMismatch) as caught:
        build(ui, step(make_step, "10-swapped"), debs=locked)
    assert "other_1.0_all.deb: FAILED" in caught.value.found
    assert "first_1.0_all.deb" not in caught.value.found
    assert len(engine.images.list(all=True)) == before, "no layer is kept"


def test_a_dependency_that_neither_lock_nor_base_holds_stops_before_any_step(
    ui: Console, build: Build, make_step: Any, debs: Path, engine: Any
) -> None:
    locked = [make_deb(debs, "lonely", extra="Depends: python3, libnowhere (>= 1.2)\n")]
    with pytest.raises(LockError) as caught:
        build(ui, make_step("05-first", "true\n"), step(make_step, "10-lonely"), debs=locked)
    assert "lonely 1.0 needs libnowhere (>= 1.2); there is none" in caught.value.found
    assert [s.target for s in ui.steps if s.verb == "layer"] == []


def test_packages_that_cannot_stand_beside_each_other_stop_before_any_step(
    ui: Console, build: Build, make_step: Any, debs: Path
) -> None:
    locked = [make_deb(debs, "mine", extra="Conflicts: bash (>= 5)\n")]
    with pytest.raises(LockError, match=r"mine 1\.0 cannot stand beside bash 5"):
        build(ui, step(make_step, "10-conflict"), debs=locked)


SMUGGLED = INSTALL + "dpkg --install /mnt/lib/smuggled_1.0_all.deb\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (SMUGGLED, "smuggled: was absent, is 1.0; not in the lock"),
        (INSTALL + "dpkg --force-depends --purge ninja-build\n", "ninja-build: was "),
        ("true /mnt/lib/dpkg.sh\n", "tool: is absent; the lock says 1.0"),
        ("dpkg --unpack /mnt/debs/*.deb\n", "tool: is 1.0 (install ok unpacked); the lock says"),
    ],
    ids=["smuggled", "removed", "left-out", "not-configured"],
)
def test_a_step_that_leaves_other_packages_than_the_locked_ones_gives_no_layer(
    script: str, said: str, ui: Console, build: Build, make_step: Any, debs: Path, engine: Any
) -> None:
    locked = [make_deb(debs, "tool")]
    make_deb(debs, "smuggled")
    before = len(engine.images.list(all=True))
    with pytest.raises(ImageError) as caught:
        build(ui, step(make_step, "10-bad", script, debs / "smuggled_1.0_all.deb"), debs=locked)
    assert "step 10-bad left other packages than the lock names" in caught.value.found
    assert said in caught.value.found
    assert len(engine.images.list(all=True)) == before


def test_a_step_without_packages_may_install_none(
    ui: Console, build: Build, make_step: Any, debs: Path
) -> None:
    make_deb(debs, "smuggled")
    script = "dpkg --install /mnt/lib/smuggled_1.0_all.deb\n"
    bad = make_step("20-later", script, uses=(debs / "smuggled_1.0_all.deb",))
    with pytest.raises(ImageError, match="smuggled: was absent"):
        build(ui, bad, debs=[])


def test_a_step_cannot_reach_a_mirror(
    ui: Console, build: Build, make_step: Any, debs: Path
) -> None:
    script = (
        "echo 'deb http://deb.example.org/debian trixie main' > /etc/apt/sources.list\n"
        "apt-get update -o Acquire::Retries=0 --error-on=any\n"
    )
    with pytest.raises(ImageError, match=r"deb\.example\.org"):
        build(ui, make_step("10-online", script), debs=[])
