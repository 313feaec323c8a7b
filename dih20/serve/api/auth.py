"""Bearer tokens, for those who want them."""

from __future__ import annotations

from collections.abc import Iterable

from dih20.serve.api.errors import ApiError
from dih20.serve.secrets import Secret


def authorise(tokens: list[Secret], headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise 401 unless a listed token is offered; without tokens everybody may."""
    if not tokens:
        return
    offered = dict(headers).get(b"authorization", b"")
    scheme, _, value = offered.partition(b" ")
    # every token is compared, so that the time tells nothing about which one is near
    fits = [token.matches(value.strip()) for token in tokens]
    if scheme.lower() != b"bearer" or not any(fits):
        raise ApiError(
            401, "a bearer token of this server is needed", code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )  # fmt: skip
