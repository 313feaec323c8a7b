"""How many compilers may run at once: never more than cores or memory allow."""

from __future__ import annotations

from dataclasses import dataclass

GB = 10**9
MARGIN_BYTES = 2 * GB  # the builder itself, the page cache it needs, the engine


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """The number of compile jobs and the reason for it, for the log and for error messages."""

    count: int
    cores: int
    memory_limit_bytes: int
    memory_per_job_gb: float
    requested: int | None

    @property
    def why(self) -> str:
        asked = f", {self.requested} asked for" if self.requested else ""
        return (
            f"{self.count} job(s): {self.cores} core(s), memory limit {self.memory_limit_bytes / GB:.1f} GB, "
            f"{self.memory_per_job_gb:g} GB a job{asked}"
        )

    def halved(self) -> Jobs:
        """Give the jobs for the one retry after a compiler was killed."""
        return Jobs(
            count=max(1, self.count // 2),
            cores=self.cores,
            memory_limit_bytes=self.memory_limit_bytes,
            memory_per_job_gb=self.memory_per_job_gb,
            requested=self.requested,
        )


def bounded(
    *,
    cores: int,
    memory_limit_bytes: int,
    requested: int | None = None,
    memory_per_job_gb: float = 5.0,
    margin_bytes: int = MARGIN_BYTES,
) -> Jobs:
    """Give min(asked, cores, (limit - margin) / memory per job), and at least one."""
    by_memory = int(max(0, memory_limit_bytes - margin_bytes) // (memory_per_job_gb * GB))
    count = max(1, min(requested or cores, cores, by_memory))
    return Jobs(
        count=count,
        cores=cores,
        memory_limit_bytes=memory_limit_bytes,
        memory_per_job_gb=memory_per_job_gb,
        requested=requested,
    )
