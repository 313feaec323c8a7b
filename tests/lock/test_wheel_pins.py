"""Pins of CUDA wheels: versions of one release, and a placeholder without headers is refused."""

from __future__ import annotations

import pytest

from dih20.config import load_image
from dih20.config.image import ImageConfig
from dih20.errors import LockError
from dih20.index.shelf import open_indexes
from dih20.lock.targets import Target
from dih20.lock.wheel_pins import WheelPins, check_holds_headers
from tests.index.fixtures import StartIndex, mirrors_to
from tests.index.local_index import LocalIndex, wheel

TARGET = Target("cp312", "2.39")


def cuda_index(start_index: StartIndex) -> LocalIndex:
    """An index with two releases of cusparse, the meta package, and the placeholder as it really is."""
    index = start_index()
    needs = ['nvidia-cusparse==12.6.3.3.*; extra == "cusparse"']
    index.add(
        "cuda-toolkit",
        "cuda_toolkit-13.0.3.0-py2.py3-none-any.whl",
        wheel("cuda_toolkit", "13.0.3.0", needs),
    )
    header = {
        "nvidia/cu13/include/cusparse.h": b"#define CUSPARSE_VERSION",
        "nvidia/cu13/lib/libcusparse.so.12": b"",
    }
    for version in ("12.6.3.3", "12.9.4.2"):
        name = f"nvidia_cusparse-{version}-py3-none-manylinux2014_x86_64.whl"
        index.add("nvidia-cusparse", name, wheel("nvidia_cusparse", version, files=header))
    for version in ("0.0.0a0", "0.0.1"):
        placeholder = wheel("x", version, files={"nvidia_cusparse_cu13/__init__.py": b""})
        name = f"nvidia_cusparse_cu13-{version}-py2.py3-none-any.whl"
        index.add("nvidia-cusparse-cu13", name, placeholder)
    return index


def image_wanting(*headers: str) -> ImageConfig:
    image = load_image()
    return image.model_copy(update={"wheels": image.wheels.model_copy(update={"headers": headers})})


def test_a_name_without_a_version_gets_the_one_that_belongs_to_the_cuda_release(
    start_index: StartIndex,
) -> None:
    pins = WheelPins(
        open_indexes(mirrors_to(cuda_index(start_index))), image_wanting("nvidia-cusparse")
    )
    assert [str(f) for f in pins.headers(TARGET)] == ["nvidia-cusparse 12.6.3.3"]


def test_the_placeholder_is_refused_because_it_holds_no_header(start_index: StartIndex) -> None:
    pins = WheelPins(
        open_indexes(mirrors_to(cuda_index(start_index))), image_wanting("nvidia-cusparse-cu13")
    )
    with pytest.raises(LockError) as fault:
        pins.headers(TARGET)
    assert (
        "nvidia_cusparse_cu13-0.0.1-py2.py3-none-any.whl holds 2 files and no header"
        in fault.value.found
    )
    assert "without -cu13" in fault.value.remedy


def test_a_placeholder_that_is_only_a_pre_release_is_also_opened(start_index: StartIndex) -> None:
    index = cuda_index(start_index)
    del index.projects["nvidia-cusparse-cu13"]["nvidia_cusparse_cu13-0.0.1-py2.py3-none-any.whl"]
    pins = WheelPins(open_indexes(mirrors_to(index)), image_wanting("nvidia-cusparse-cu13"))
    with pytest.raises(LockError, match=r"nvidia_cusparse_cu13-0.0.0a0.* and no header"):
        pins.headers(TARGET)


@pytest.mark.parametrize(
    "members", [[], ["a/include/readme.txt"], ["a/src/cusparse.h"], ["a/__init__.py"]]
)
def test_only_headers_in_an_include_folder_count(members: list[str]) -> None:
    with pytest.raises(LockError, match="no header"):
        check_holds_headers("x-1-py3-none-any.whl", members)


@pytest.mark.parametrize(
    "member", ["nvidia/cu13/include/cusparse.h", "include/cub/cub.cuh", "x/include/cuda/std/a.hpp"]
)
def test_headers_of_every_spelling_count(member: str) -> None:
    check_holds_headers("x-1-py3-none-any.whl", [member])


def test_a_wanted_version_that_no_index_has_names_the_indexes_that_were_asked(
    start_index: StartIndex,
) -> None:
    index = cuda_index(start_index)
    pins = WheelPins(open_indexes(mirrors_to(index)), image_wanting("nvidia-cusparse==1.0"))
    with pytest.raises(LockError) as fault:
        pins.headers(TARGET)
    assert "nvidia-cusparse==1.0; they have other versions" in fault.value.found
    assert index.url in fault.value.found
