"""Rows of output by address; released ones cannot be read any more."""

from __future__ import annotations

from typing import Any, ClassVar


class RequestOutput:
    rows: ClassVar[dict[int, dict[str, Any]]] = {}

    @staticmethod
    def get_request_id(ptr: int) -> str:
        return str(RequestOutput.rows[ptr]["request_id"])

    @staticmethod
    def get_token_id(ptr: int) -> int:
        return int(RequestOutput.rows[ptr]["token_id"])

    @staticmethod
    def get_finish_reason(ptr: int) -> str:
        return str(RequestOutput.rows[ptr]["finish_reason"])

    @staticmethod
    def get_finished(ptr: int) -> bool:
        return bool(RequestOutput.rows[ptr]["finished"])

    @staticmethod
    def get_token_logprobs(ptr: int) -> float:
        return float(RequestOutput.rows[ptr]["token_logprobs"])

    @staticmethod
    def get_top_logprobs(ptr: int) -> list[float]:
        return list(RequestOutput.rows[ptr]["top_logprobs"])

    @staticmethod
    def get_top_token_ids(ptr: int) -> list[int]:
        return list(RequestOutput.rows[ptr]["top_token_ids"])
