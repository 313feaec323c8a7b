"""The status page and its numbers."""

from __future__ import annotations

import time

import orjson
from fastapi import APIRouter, Response

from dih20.serve.api.health import READ
from dih20.serve.gpu_memory import GpuMemory
from dih20.serve.page import HEADERS, Status, render
from dih20.serve.service import Service

_FRESH_S = 0.5


def status_routes(service: Service) -> APIRouter:
    """Give / and /status.json; the page is made at most twice a second, however many look."""
    routes = APIRouter()
    kept: tuple[float, bytes] = (-1.0, b"")

    @routes.api_route("/", methods=READ)
    async def page() -> Response:
        nonlocal kept
        now = time.monotonic()
        if kept[0] < 0 or now - kept[0] > _FRESH_S:
            kept = (now, render(app_status(service)).encode())
        return Response(kept[1], headers=HEADERS, media_type="text/html")

    @routes.api_route("/status.json", methods=READ)
    async def numbers() -> Response:
        return Response(orjson.dumps(app_status(service)), media_type="application/json")

    return routes


def app_status(service: Service) -> Status:
    """Give this moment of the server."""
    state, table, metrics = service.state, service.table, service.metrics
    now = time.monotonic()
    verdict = service.verdict
    evidence = ""
    if verdict is not None:
        evidence = verdict.reason or "; ".join(
            f"{row['question']} → {row.get('text', '').strip()}" for row in verdict.answers[:4]
        )
    return Status(
        state=state.phase,
        model=service.settings.served_name,
        engine=service.info.get("name", service.settings.engine),
        ranks=service.settings.ranks,
        elapsed_s=state.elapsed_s,
        phase_elapsed_s=state.phase_elapsed_s,
        eta_s=state.eta_s,
        fraction=state.fraction,
        progress_line=state.line,
        reason=state.reason,
        running=len(table.running),
        waiting=len(table.waiting),
        queue_limit=table.max_queue,
        finished=metrics.finished,
        refused=metrics.refused,
        failed=metrics.failed,
        tokens_per_s=service.hearing.rate.per_s(now),
        tokens_total=metrics.answer_tokens,
        last_step_age_s=table.step_age_s,
        gate="" if verdict is None else verdict.state,
        gate_evidence=evidence,
        gpus=_gpus(service),
        last_error=service.last_error,
        last_error_age_s=now - service.last_error_at if service.last_error else None,
        identities=service.settings.identities,
    )


def _gpus(service: Service) -> tuple[GpuMemory, ...]:
    """Give what the driver says of each GPU, else what the ranks say of theirs."""
    if service.gpus:
        return service.gpus
    return tuple(
        GpuMemory(index=rank.rank, used_bytes=rank.memory[0], total_bytes=rank.memory[1])
        for rank in service.fleet.ranks
        if rank.memory
    )
