from __future__ import annotations

import pytest

from dih20.wheels.jobs import GB, bounded


@pytest.mark.parametrize(
    ("cores", "limit_gb", "requested", "count"),
    [
        (2, 24, 48, 2),  # never more than cores
        (64, 24, None, 4),  # (24 - 2) / 5
        (64, 24, 3, 3),
        (64, 0.512, 48, 1),  # less than the margin still leaves one
        (1, 512, 48, 1),
    ],
)
def test_jobs_never_exceed_cores_or_memory(
    cores: int, limit_gb: float, requested: int | None, count: int
) -> None:
    jobs = bounded(cores=cores, memory_limit_bytes=int(limit_gb * GB), requested=requested)
    assert jobs.count == count


def test_the_reason_names_cores_limit_and_what_was_asked() -> None:
    why = bounded(cores=2, memory_limit_bytes=24 * GB, requested=48).why
    for part in ("2 job(s)", "2 core(s)", "24.0 GB", "5 GB a job", "48 asked for"):
        assert part in why


def test_a_retry_halves_and_never_reaches_zero() -> None:
    jobs = bounded(cores=3, memory_limit_bytes=100 * GB)
    assert [jobs.halved().count, jobs.halved().halved().count] == [1, 1]
