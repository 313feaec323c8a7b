"""Apt packages keep their versions while the mirror has them; what stands on a moved base follows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dih20.config import load_image
from dih20.console import Console
from dih20.errors import LockError
from dih20.lock import Base, Lock
from dih20.lock.apt_root import AptRoot
from dih20.lock.base_pins import apt_closure, variant_closure
from dih20.lock.checking import check_wants
from dih20.lock.files import CiImage
from dih20.lock.keeping import Keeping
from dih20.lock.stand_in import package_list_digest
from dih20.lock.wants import wanted_by
from tests.lock.apt_fixture import apt_with
from tests.lock.locks import a_base, a_lock

OLD = [("tool", "1.0", "Depends: lib\n"), ("lib", "1.0", ""), ("base", "1.0", "")]
NEW = [("tool", "2.0", "Depends: lib\n"), ("lib", "2.0", "")]


class Roots:
    """Stands for AptRoots: every suite's mirror is one folder."""

    def __init__(self, apt: AptRoot) -> None:
        self.apt = apt

    def root(self, suite: str, architecture: str) -> AptRoot:
        return self.apt


@pytest.fixture
def roots(tmp_path: Path) -> Any:
    return Roots(apt_with(tmp_path, [*OLD, *NEW]))


def stand_in(apt: AptRoot) -> Base:
    packages = tuple(apt.pin(["base"]))
    return a_base("stand-in", digest=package_list_digest(packages), packages=packages)


def pinned(roots: Any, *names: str) -> Any:
    return tuple(roots.apt.pin([f"{name}=1.0" for name in names]))


def test_a_closure_takes_the_newest_and_keeps_the_versions_that_it_is_given(roots: Any) -> None:
    base = stand_in(roots.apt)
    assert [str(f) for f in apt_closure(base, ["tool"], roots)] == ["lib 2.0", "tool 2.0"]
    kept = pinned(roots, "tool", "lib")
    assert apt_closure(base, ["tool"], roots, kept) == tuple(sorted(kept, key=lambda f: f.name))
    some = apt_closure(base, ["tool"], roots, pinned(roots, "lib"))
    assert [str(f) for f in some] == ["lib 1.0", "tool 2.0"]
    assert [str(f) for f in apt_closure(base, ["tool"], roots)] == ["lib 2.0", "tool 2.0"], (
        "pins of the call before do not stay"
    )


def test_a_version_that_the_mirror_dropped_moves(tmp_path: Path) -> None:
    roots: Any = Roots(apt_with(tmp_path, [*OLD, *NEW]))
    kept = pinned(roots, "tool", "lib")
    newer: Any = Roots(apt_with(tmp_path / "later", [*NEW, ("base", "1.0", "")]))
    found = apt_closure(stand_in(newer.apt), ["tool"], newer, kept)
    assert [str(f) for f in found] == ["lib 2.0", "tool 2.0"]


def test_pins_that_do_not_fit_what_may_move_are_let_go_together(tmp_path: Path) -> None:
    strict = [("tool", "2.0", "Depends: lib (>= 2)\n"), ("lib", "2.0", "")]
    roots: Any = Roots(apt_with(tmp_path, [*OLD, *strict]))
    found = apt_closure(stand_in(roots.apt), ["tool"], roots, pinned(roots, "lib"))
    assert [str(f) for f in found] == ["lib 2.0", "tool 2.0"]


def test_a_variant_keeps_its_versions_too(roots: Any) -> None:
    base = stand_in(roots.apt)
    lib = pinned(roots, "lib")
    assert [str(f) for f in variant_closure(base, lib, ["tool"], roots)] == ["tool 2.0"]
    kept = variant_closure(base, lib, ["tool"], roots, pinned(roots, "tool"))
    assert [str(f) for f in kept] == ["tool 1.0"]


def test_what_may_move_is_by_name_by_base_or_all() -> None:
    lock = a_lock()
    image = load_image()
    assert [f.name for f in Keeping.of(lock, "git").files(lock.apt["stand-in"])] == ["pciutils"]
    assert Keeping.of(lock, True).files(lock.apt["stand-in"]) == ()
    assert len(Keeping.of(lock, False).files(lock.apt["stand-in"])) == 2
    assert [f.name for f in Keeping.of(lock, "git").packages_of("stand-in")] == ["libc6"]
    assert Keeping.of(lock, "stand-in").packages_of("stand-in") == ()
    assert Keeping.of(lock, "libc6").packages_of("stand-in") == ()
    assert Keeping.of(lock, "").why("wheels", image) == "what is wanted has changed"


def test_packages_on_a_base_that_moved_are_resolved_again(
    ui: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dih20.lock import writing

    asked: list[str] = []

    class Recording:
        image = load_image()

        def part(self, name: str, lock: Lock) -> Lock:
            asked.append(name)
            if name != "base stand-in":
                return lock
            moved = lock.bases["stand-in"].model_copy(update={"digest": f"sha256:{9:064x}"})
            return lock.model_copy(update={"bases": {**lock.bases, "stand-in": moved}})

    resolver: Any = Recording()
    writing._resolved(resolver, ["base stand-in"], a_lock(), ("stand-in",))
    assert asked == ["base stand-in", "apt stand-in"]
    asked.clear()
    writing._resolved(resolver, ["wheels"], a_lock(), ("stand-in",))
    assert asked == ["wheels"]


def test_the_ci_image_s_packages_follow_their_base_where_they_are_asked_about(
    ui: Console,
) -> None:
    from dih20.lock import writing

    asked: list[str] = []

    class Recording:
        image = load_image()

        def part(self, name: str, lock: Lock) -> Lock:
            asked.append(name)
            return lock

    resolver: Any = Recording()
    ci = CiImage(base_digest=f"sha256:{5:064x}", debs=(), wheels=())
    lock = a_lock(ci=ci, wants={"ci": wanted_by("ci", load_image())})
    assert Keeping.of(lock, False).why("ci", load_image()) == "its base has moved"
    with pytest.raises(LockError, match="stale: ci"):
        check_wants(lock, load_image(), ("ci",))
    for with_ci, expected in ((True, ["ci"]), (False, [])):
        writing._resolved(resolver, [], lock, ("stand-in",), with_ci=with_ci)
        assert asked == expected
        asked.clear()
    base_digest = lock.bases["stand-in"].digest
    same = lock.model_copy(update={"ci": ci.model_copy(update={"base_digest": base_digest})})
    assert Keeping.of(same, False).why("ci", load_image()) == ""
    check_wants(same, load_image(), ("ci",))
