"""Messages of a chat: text only, by known roles."""

from __future__ import annotations

from typing import Any

from dih20.serve.api.errors import invalid

_ROLES = ("system", "developer", "user", "assistant")


def read_message(message: Any, where: str) -> dict[str, Any]:
    """Give role and text of one message; raises ApiError."""
    if not isinstance(message, dict):
        raise invalid(f"{where} must be an object", where, "invalid_type")
    for key, value in message.items():
        if key not in ("role", "content", "name") and value not in (None, [], ""):
            raise invalid(f"{where}.{key} is not supported", f"{where}.{key}"[:200])
    role = message.get("role")
    if role not in _ROLES:
        raise invalid(f"{where}.role must be one of {', '.join(_ROLES)}", f"{where}.role")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, f"{where}.content[{at}]") for at, part in enumerate(content))
    if not isinstance(content, str):
        raise invalid(f"{where}.content must be a string", f"{where}.content", "invalid_type")
    return {"role": "system" if role == "developer" else role, "content": content}


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise invalid(f"{where}: only parts of type text are supported", where)
    if not isinstance(part.get("text"), str):
        raise invalid(f"{where}.text must be a string", f"{where}.text", "invalid_type")
    return str(part["text"])
