"""Resolving wheels for a target python: tags, markers, extras, conflicts, and what is provided."""

from __future__ import annotations

import hashlib

import pytest
from packaging.specifiers import SpecifierSet

from dih20.errors import LockError
from dih20.index.simple import IndexFile
from dih20.lock.closure import Shelf, resolve, wheels_of
from dih20.lock.targets import Target

TARGET = Target("cp312", "2.39")


def shelf(offers: dict[str, list[str]], **yanked: str) -> Shelf:
    """A shelf from file name -> requirements; keyword yanked="name" marks a file."""
    by_project: dict[str, list[IndexFile]] = {}
    for filename in offers:
        project = filename.split("-")[0].replace("_", "-")
        by_project.setdefault(project, []).append(
            IndexFile(
                filename=filename,
                url=f"http://x.invalid/{filename}",
                sha256=hashlib.sha256(filename.encode()).hexdigest(),
                index="x",
                yanked=filename in yanked.values(),
            )
        )

    def metadata(file: IndexFile) -> str:
        lines = [f"Requires-Dist: {text}" for text in offers[file.filename]]
        return "\n".join(["Metadata-Version: 2.1", "Name: x", *lines]) + "\n"

    return Shelf(
        files=lambda project: by_project.get(project.replace("_", "-"), []), metadata=metadata
    )


def names(files: list[IndexFile]) -> list[str]:
    return [file.filename for file in files]


class TestTarget:
    @pytest.mark.parametrize(
        "filename",
        [
            "a-1-py3-none-any.whl",
            "a-1-cp312-cp312-manylinux_2_28_x86_64.whl",
            "a-1-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
            "a-1-cp39-abi3-manylinux_2_39_x86_64.whl",
            "a-1-py2.py3-none-manylinux1_x86_64.whl",
        ],
    )
    def test_it_accepts(self, filename: str) -> None:
        assert TARGET.accepts(filename)

    @pytest.mark.parametrize(
        "filename",
        [
            "a-1-cp313-cp313-manylinux_2_28_x86_64.whl",
            "a-1-cp312-cp312t-manylinux_2_28_x86_64.whl",
            "a-1-cp312-cp312-manylinux_2_40_x86_64.whl",
            "a-1-cp312-cp312-manylinux_2_28_aarch64.whl",
            "a-1-cp312-cp312-win_amd64.whl",
            "a-1-cp312-cp312-musllinux_1_2_x86_64.whl",
            "a-1.tar.gz",
        ],
    )
    def test_it_does_not_accept(self, filename: str) -> None:
        assert not TARGET.accepts(filename)

    def test_arm_takes_its_own_wheels(self) -> None:
        assert Target("cp312", "2.39", "arm64").accepts(
            "a-1-cp312-cp312-manylinux_2_28_aarch64.whl"
        )


class TestChoice:
    def test_the_newest_version_wins_and_in_it_the_wheel_closest_to_the_target(self) -> None:
        offers = shelf(
            {
                "a-1-py3-none-any.whl": [],
                "a-2-py3-none-any.whl": [],
                "a-2-cp312-cp312-linux_x86_64.whl": [],
            }
        )
        assert (
            names(wheels_of(offers, TARGET, "a", SpecifierSet()))[0]
            == "a-2-cp312-cp312-linux_x86_64.whl"
        )

    def test_a_pre_release_or_yanked_file_is_taken_only_when_asked_for_exactly(self) -> None:
        offers = shelf(
            {f"a-{v}-py3-none-any.whl": [] for v in ("1", "2", "3rc1")},
            yanked="a-2-py3-none-any.whl",
        )
        assert names(wheels_of(offers, TARGET, "a", SpecifierSet())) == ["a-1-py3-none-any.whl"]
        assert names(wheels_of(offers, TARGET, "a", SpecifierSet("==2"))) == [
            "a-2-py3-none-any.whl"
        ]
        assert names(wheels_of(offers, TARGET, "a", SpecifierSet("==3rc1"))) == [
            "a-3rc1-py3-none-any.whl"
        ]


class TestResolve:
    def test_needs_are_followed_for_the_target_and_not_for_the_python_that_runs_here(self) -> None:
        offers = shelf(
            {
                "a-1-py3-none-any.whl": [
                    'b; python_version < "3.12"',
                    'c; platform_system == "Linux"',
                    'd; extra == "x"',
                ],
                "b-1-py3-none-any.whl": [],
                "c-1-py3-none-any.whl": [],
                "d-1-py3-none-any.whl": [],
            }
        )
        assert names(resolve(offers, TARGET, ["a"])) == [
            "a-1-py3-none-any.whl",
            "c-1-py3-none-any.whl",
        ]
        assert "d-1-py3-none-any.whl" in names(resolve(offers, TARGET, ["a[x]"]))

    def test_an_older_version_is_taken_when_the_newest_contradicts_something(self) -> None:
        offers = shelf(
            {
                "a-1-py3-none-any.whl": ["c<2"],
                "b-1-py3-none-any.whl": ["c>=1"],
                "c-1-py3-none-any.whl": [],
                "c-2-py3-none-any.whl": [],
            }
        )
        assert "c-1-py3-none-any.whl" in names(resolve(offers, TARGET, ["b", "a"]))

    def test_what_is_provided_is_left_out_with_all_that_only_it_needs(self) -> None:
        offers = shelf({"a-1-py3-none-any.whl": ["torch>=2", "six"], "six-1-py3-none-any.whl": []})
        assert names(resolve(offers, TARGET, ["a"], provided=["Torch"])) == [
            "a-1-py3-none-any.whl",
            "six-1-py3-none-any.whl",
        ]

    def test_a_contradiction_names_both_sides(self) -> None:
        offers = shelf(
            {
                "a-1-py3-none-any.whl": ["c<2"],
                "b-1-py3-none-any.whl": ["c>=2"],
                "c-1-py3-none-any.whl": [],
                "c-2-py3-none-any.whl": [],
            }
        )
        with pytest.raises(LockError) as fault:
            resolve(offers, TARGET, ["a", "b"])
        assert "c<2 (for a 1)" in fault.value.found
        assert "c>=2 (for b 1)" in fault.value.found

    def test_a_package_without_a_wheel_for_the_target_is_an_error_and_not_dropped(self) -> None:
        offers = shelf(
            {
                "a-1-py3-none-any.whl": ["b"],
                "b-1-cp313-cp313-linux_x86_64.whl": [],
                "b-1.tar.gz": [],
            }
        )
        with pytest.raises(LockError) as fault:
            resolve(offers, TARGET, ["a"])
        assert "b has no wheel for cp312 on glibc 2.39 amd64" in fault.value.found
        assert "(for a 1)" in fault.value.found

    def test_a_project_that_no_index_has_is_said_so(self) -> None:
        with pytest.raises(LockError, match="no index has the project 'nowhere'"):
            resolve(shelf({}), TARGET, ["nowhere==1"])
