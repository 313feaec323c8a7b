"""uvicorn's HTTP protocol, with the connection's transport handed to the application.

A streamed token is written straight to the transport (api/stream.py): going through ASGI's send
for each costs a task switch and several layers of calls per token.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

TRANSPORT = "dih20.transport"


class StreamingProtocol(HttpToolsProtocol):
    """Adds scope["extensions"]["dih20.transport"]."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {TRANSPORT: self.transport}  # type: ignore[dict-item]
