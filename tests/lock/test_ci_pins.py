"""The CI image's pins: the one file of each requirement that its python takes, apt's closure on its base."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from dih20.config.ci import CiConfig
from dih20.errors import LockError
from dih20.index.shelf import open_indexes
from dih20.lock.ci_pins import ci_image, own_base, requirement_files
from dih20.lock.targets import Target
from tests.index.fixtures import StartIndex, mirrors_to
from tests.index.local_index import LocalIndex, wheel
from tests.lock.apt_fixture import small_apt
from tests.lock.locks import a_base
from tests.lock.test_upgrading_apt import Roots

TARGET = Target("cp313", "2.41", "amd64")
OWN = {
    "image": "debian:13",
    "digest": f"sha256:{7:064x}",
    "suite": "trixie",
    "python_tag": "cp313",
    "glibc": "2.41",
}


def config(**more: Any) -> CiConfig:
    values = {"name": "di-ci", "apt": ["tool"], "requirements": ["base"], **more}
    return CiConfig.model_validate(values)


@pytest.fixture
def index(start_index: StartIndex) -> LocalIndex:
    """An index with wheels of one project for several pythons, and a pure one."""
    made = start_index()
    for name in (
        "fast-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        "fast-1.0-cp313-cp313-manylinux_2_17_x86_64.whl",
        "fast-1.0-cp313-cp313-manylinux_2_28_x86_64.whl",
        "fast-1.0-py3-none-any.whl",
        "fast-2.0-py3-none-any.whl",
    ):
        made.add("fast", name, wheel("fast", "1.0", files={name: b""}))
    made.add("pure", "pure-1.0-py3-none-any.whl", wheel("pure", "1.0"))
    return made


@pytest.fixture
def write_lock(tmp_path: Path, index: LocalIndex, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write requirements/base.lock with every hash of the index, less those of some files."""
    (tmp_path / "requirements").mkdir()
    monkeypatch.setattr("dih20.lock.ci_pins.REPOSITORY", tmp_path)

    def write(*unlisted: str) -> None:
        lines = []
        for name in ("fast", "pure"):
            files = index.projects[name].items()
            hashes = [f.sha256 for file, f in files if file not in unlisted]
            lines += [f"{name}==1.0 \\", *(f"    --hash=sha256:{h} \\" for h in hashes[:-1])]
            lines.append(f"    --hash=sha256:{hashes[-1]}" if hashes else "    ")
        lines += ["elsewhere==1.0 ; sys_platform == 'win32' \\", f"    --hash=sha256:{'0' * 64}"]
        (tmp_path / "requirements/base.lock").write_text("\n".join(lines) + "\n")

    return write


def test_the_best_file_with_a_listed_hash_is_taken_and_other_platforms_are_left_out(
    index: LocalIndex, write_lock: Any
) -> None:
    write_lock()
    found = requirement_files(["base"], TARGET, open_indexes(mirrors_to(index)))
    assert [f.filename for f in found] == [
        "fast-1.0-cp313-cp313-manylinux_2_28_x86_64.whl",
        "pure-1.0-py3-none-any.whl",
    ]
    content = index.projects["pure"]["pure-1.0-py3-none-any.whl"].content
    assert found[1].sha256 == hashlib.sha256(content).hexdigest()


def test_a_better_file_whose_hash_is_not_listed_is_passed_over(
    index: LocalIndex, write_lock: Any
) -> None:
    write_lock("fast-1.0-cp313-cp313-manylinux_2_28_x86_64.whl")
    found = requirement_files(["base"], TARGET, open_indexes(mirrors_to(index)))
    assert found[0].filename == "fast-1.0-cp313-cp313-manylinux_2_17_x86_64.whl"


def test_a_requirement_of_which_the_index_has_no_listed_file_is_named(
    index: LocalIndex, write_lock: Any
) -> None:
    write_lock("pure-1.0-py3-none-any.whl")
    with pytest.raises(LockError, match=r"no index in force has a wheel for pure==1\.0 on cp313"):
        requirement_files(["base"], TARGET, open_indexes(mirrors_to(index)))


def test_the_image_stands_on_the_stand_in_or_on_an_own_base_by_its_digest(
    index: LocalIndex, write_lock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lock()
    roots: Any = Roots(small_apt(tmp_path))
    indexes = open_indexes(mirrors_to(index))
    stand_in = a_base(
        "stand-in", digest=f"sha256:{1:064x}", packages=tuple(roots.apt.pin(["base"]))
    )
    made = ci_image(config(), stand_in, indexes, roots)
    assert (made.base, made.base_digest) == (None, stand_in.digest)
    assert [f.name for f in made.debs] == ["lib", "tool"]

    status = "Package: lib\nVersion: 1.0\nArchitecture: amd64\nInstalled-Size: 10\nDepends: base\nStatus: install ok installed\n"
    status += "\n" + status.replace("lib", "base").replace("Depends: base\n", "")
    asked = []

    def installed(base: Any) -> str:
        asked.append(base.reference)
        return status

    monkeypatch.setattr("dih20.lock.base_pins._status_of_image", installed)
    own = config(base="own", own_base=OWN)
    made = ci_image(own, stand_in, indexes, roots)
    assert asked == [f"debian@{OWN['digest']}"]
    assert made.base == own_base(own)
    assert made.base_digest == OWN["digest"]
    assert [f.name for f in made.debs] == ["tool"]


def test_own_without_a_base_is_refused() -> None:
    with pytest.raises(ValueError, match="base: own needs own_base"):
        config(base="own")
