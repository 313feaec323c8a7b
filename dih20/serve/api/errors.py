"""Errors as OpenAI clients read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

_TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
}


class ApiError(Exception):
    """One answer that is an error. param: the field at fault; code: a word for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.param, self.code, self.headers = param, code, dict(headers or {})

    def body(self) -> bytes:
        return orjson.dumps(error_object(self.status, self.message, self.param, self.code))


def error_object(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)
