"""A value that must never be printed."""

from __future__ import annotations

import hmac


class Secret:
    """Hold a bearer token; prints as ***, compares in constant time."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value.encode()

    def matches(self, offered: bytes) -> bool:
        return hmac.compare_digest(self._value, offered)

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__
