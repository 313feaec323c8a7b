"""What `inv bundle` may be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from dih20.bundle.request import Request, size_of
from dih20.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size"), [("40M", 40 << 20), ("65536", 65536), ("1g", 1 << 30), ("64K", 65536)]
)
def test_sizes_count_in_1024(text: str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["", "40MB", "-1", "1.5M", "63K", "0"])
def test_a_size_that_is_none_or_too_small_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="part-size"):
        size_of(text)


def test_thinning_is_off_unless_asked_for() -> None:
    options = Request.of().options()
    assert options["thin_nccl"] == "" and options["thin_site"] is False


@pytest.mark.parametrize("given", ["90", "sm_90a", "sm_90,sm_100", "compute_90"])
def test_thinning_takes_one_architecture(given: str) -> None:
    with pytest.raises(UsageError, match="thin-nccl"):
        Request.of(thin_nccl=given)


def test_foreign_wheels_need_the_torch_they_were_built_with(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only one of the two"):
        Request.of(wheels=str(tmp_path))


def test_names_are_taken_as_indexes_write_them() -> None:
    assert Request.of(without="Tile_Kernels, nccl,").without == ("nccl", "tile-kernels")


def test_options_say_nothing_of_this_machine(tmp_path: Path) -> None:
    assert str(tmp_path) not in str(Request.of(out=str(tmp_path / "x")).options())
