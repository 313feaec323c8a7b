"""The application: routes put together, every error in one shape."""

from __future__ import annotations

import time

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route as StarletteRoute

from dih20.serve.api.auth import authorise
from dih20.serve.api.errors import ApiError
from dih20.serve.api.health import health_routes
from dih20.serve.api.openai import Route
from dih20.serve.api.status import status_routes
from dih20.serve.service import Service


def make_app(service: Service) -> FastAPI:
    """Give the ASGI application of a service."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(health_routes(service))
    app.include_router(status_routes(service))
    started = int(time.time())

    @app.get("/v1/models")
    @app.get("/v1/models/{name:path}")
    async def models(request: Request, name: str = "") -> Response:
        authorise(service.tokens, request.scope["headers"])
        served = service.settings.served_name
        row = {"id": served, "object": "model", "created": started, "owned_by": "dih20"}
        if name and name != served:
            raise ApiError(404, f"the model {name[:200]!r} does not exist", code="model_not_found")
        body = row if name else {"object": "list", "data": [row]}
        return Response(orjson.dumps(body), media_type="application/json")

    for path, kind in (("/v1/completions", "completions"), ("/v1/chat/completions", "chat")):
        app.router.routes.append(
            StarletteRoute(path, Route(service, kind), methods=["POST"], include_in_schema=False)
        )

    @app.exception_handler(ApiError)
    async def refused(_: Request, fault: Exception) -> Response:
        assert isinstance(fault, ApiError)
        return _response(fault)

    @app.exception_handler(HTTPException)
    async def http(request: Request, fault: Exception) -> Response:
        assert isinstance(fault, HTTPException)
        said = f"{request.method} {request.url.path[:200]}: {fault.detail}"
        return _response(ApiError(fault.status_code, said, headers=fault.headers))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, fault: Exception) -> Response:
        return _response(ApiError(422, f"the request is not valid: {fault}"[:500]))

    @app.exception_handler(Exception)
    async def internal(_: Request, fault: Exception) -> Response:
        return _response(ApiError(500, f"a fault of the server: {type(fault).__name__}"))

    return app


def _response(fault: ApiError) -> Response:
    return Response(
        fault.body(), fault.status, headers=fault.headers, media_type="application/json"
    )
