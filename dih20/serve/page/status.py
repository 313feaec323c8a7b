"""What the status page and /status.json say."""

from __future__ import annotations

from dataclasses import dataclass, field

from dih20.serve.gpu_memory import GpuMemory


@dataclass(frozen=True, kw_only=True)
class Status:
    """One moment of the server, in plain values; no prompt and no secret is ever in it.

    state is a phase: starting, loading, warming, gating, ready, draining, failed or stopped.
    """

    state: str
    model: str = ""
    engine: str = ""
    ranks: int = 1
    elapsed_s: float = 0.0
    phase_elapsed_s: float = 0.0
    eta_s: float | None = None
    fraction: float | None = None
    progress_line: str = ""
    reason: str = ""
    running: int = 0
    waiting: int = 0
    queue_limit: int = 0
    finished: int = 0
    refused: int = 0
    failed: int = 0
    tokens_per_s: float = 0.0
    tokens_total: int = 0
    last_step_age_s: float | None = None
    gate: str = ""
    gate_evidence: str = ""
    gpus: tuple[GpuMemory, ...] = ()
    last_error: str = ""
    last_error_age_s: float | None = None
    identities: dict[str, str] = field(default_factory=dict)
