"""What comparing and capturing may cost; the sizes of the issue are behind the mark `vendor`."""

from __future__ import annotations

import pytest

from bench.parity import measure_capture, measure_compare

pytestmark = pytest.mark.torch


def test_the_first_difference_in_a_large_dump_is_found_in_bounded_memory() -> None:
    found = measure_compare(60, full=True, wrong_from=0.5)
    assert found["first"] == "layers.0.ffn.norm"
    assert found["peak_mb"] < 700, found  # torch alone is about 300


@pytest.mark.vendor
@pytest.mark.parametrize("full", [False, True], ids=["bracket", "full"])
def test_two_dumps_of_500_mb_are_compared_under_1_gb_and_faster_than_they_are_read(
    full: bool,
) -> None:
    found = measure_compare(500, full=full)
    assert found["mb_each"] >= 490, found
    assert found["peak_mb"] < 1000, found
    if not full:
        # processor time: what others do on this machine meanwhile is not our cost
        assert found["cpu_seconds"] < found["allowed_seconds"], found


@pytest.mark.vendor
def test_statistics_only_capture_slows_the_reference_by_less_than_15_percent() -> None:
    found = measure_capture(1000, 3)
    assert found["slower_by"] < 0.15, found
