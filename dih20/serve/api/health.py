"""What state the server is in, truthfully."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from dih20.serve.service import Service

READ = ["GET", "HEAD"]


def _json(status: int, values: dict[str, Any]) -> Response:
    return Response(orjson.dumps(values), status, media_type="application/json")


def health_routes(service: Service) -> APIRouter:
    """Give the routes; a 200 of readyz means: this instance has answered a known question."""
    routes = APIRouter()
    state = service.state

    def about() -> dict[str, Any]:
        return {
            "instance": service.instance,
            "phase": state.phase,
            "elapsed_s": round(state.elapsed_s, 3),
        }

    def startup() -> dict[str, Any]:
        eta = state.eta_s
        return about() | {
            "phase_elapsed_s": round(state.phase_elapsed_s, 3),
            "phases_s": state.phases_s,
            "eta_s": None if eta is None else round(eta, 1),
            "fraction": state.fraction,
            "progress_line": state.line,
            "progress_age_s": round(state.clock() - state.progressed, 1),
            "reason": state.reason,
            "ranks": [rank.describe() for rank in service.fleet.ranks],
        }

    @routes.api_route("/livez", methods=READ)
    async def livez() -> Response:
        return _json(200, about() | {"alive": True})

    @routes.api_route("/startupz", methods=READ)
    async def startupz() -> Response:
        """Say how far the start is; 200 as long as it may still succeed, or has."""
        return _json(503 if state.phase in ("failed", "stopped") else 200, startup())

    @routes.api_route("/readyz", methods=READ)
    @routes.api_route("/health", methods=READ)
    async def readyz() -> Response:
        """Say 200 only after a known question was answered, and while new ones are taken."""
        ready = state.phase == "ready"
        values = startup() | {"ready": ready, "gate": service.evidence()}
        return _json(200 if ready else 503, values)

    @routes.api_route("/progressz", methods=READ)
    async def progressz() -> Response:
        age = service.table.step_age_s
        stalled = age is not None and age > service.settings.deadlines.stall_timeout_s
        values = about() | {
            "step_age_s": None if age is None else round(age, 3),
            "pending": service.table.pending,
            "stalled": stalled,
        }
        return _json(503 if stalled or state.phase == "failed" else 200, values)

    @routes.api_route("/version", methods=READ)
    async def version() -> Response:
        return _json(200, about() | service.identity())

    @routes.api_route("/metrics", methods=READ)
    async def metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return routes
