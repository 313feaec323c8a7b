"""The status page: what the server is doing, for a person."""

from __future__ import annotations

from dih20.serve.page.rendering import HEADERS, render
from dih20.serve.page.status import Status

__all__ = ["HEADERS", "Status", "render"]
