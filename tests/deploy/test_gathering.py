"""Which image of the local engine is the one to deploy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dih20.deploy.gathering import find_image
from dih20.errors import ImageError
from tests.deploy.stand import TAG, make_image

pytestmark = pytest.mark.docker
LOCK: Any = SimpleNamespace(identity="l" * 64)


def test_the_newest_image_of_this_lock_and_base_is_taken(engine: Any, standin_image: str) -> None:
    make_image(engine, standin_image, tag="di-h20:ffffffffffff", content="older\n")
    newest = make_image(engine, standin_image)
    found = find_image(engine, LOCK, "stand-in")
    assert (found.tag, found.layers.diff_ids) == (TAG, newest.layers.diff_ids)
    assert found.layers.tags == (TAG,)
    assert (found.python_tag, found.torch) == ("cp313", "none")
    assert find_image(engine, LOCK, "stand-in", "di-h20:ffffffffffff").tag == "di-h20:ffffffffffff"


@pytest.mark.parametrize(("lock", "base"), [("m", "stand-in"), ("l", "vllm")])
def test_an_image_of_another_lock_or_base_is_not_taken_for_it(
    engine: Any, standin_image: str, lock: str, base: str
) -> None:
    make_image(engine, standin_image)
    other: Any = SimpleNamespace(identity=lock * 64)
    with pytest.raises(ImageError) as failed:
        find_image(engine, other, base)
    assert f"{TAG} (stand-in, lock llllllllllll)" in failed.value.found
    assert "./inv build-image" in failed.value.remedy


def test_a_tag_that_is_not_there_is_an_error(engine: Any) -> None:
    with pytest.raises(ImageError, match="no image di-h20:none"):
        find_image(engine, LOCK, "stand-in", "di-h20:none")
