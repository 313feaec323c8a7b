"""What an engine cannot take, said in words that the client may read."""

from __future__ import annotations

import time
from typing import Any, TypeVar

from pydantic import ValidationError

from dih20.errors import ConfigError
from dih20.serve.engines.interface import Emission, EngineContext, EngineRequest
from dih20.serve.settings import Part

Options = TypeVar("Options", bound=Part)


def why_refused(request: EngineRequest, vocab_size: int, max_model_len: int) -> str | None:
    """Give what is wrong with a request, or None. The gateway checks too; engines must not fall."""
    if not request.prompt:
        return "the prompt is empty"
    if len(request.prompt) >= max_model_len:
        return (
            f"the prompt has {len(request.prompt)} tokens; prompt and answer together have room "
            f"for {max_model_len}"
        )
    lowest, highest = min(request.prompt), max(request.prompt)
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        return f"token {wrong} is not in the vocabulary of {vocab_size}"
    if request.max_tokens < 1:
        return f"max_tokens is {request.max_tokens}, at least 1 is needed"
    if not request.temperature >= 0.0:
        return f"temperature is {request.temperature}, at least 0 is needed"
    if not 0.0 < request.top_p <= 1.0:
        return f"top_p is {request.top_p}, above 0 and at most 1 is needed"
    return None


def refused(request_id: int, reason: str) -> Emission:
    """Give the one emission of a request that never runs, or that cannot go on."""
    now = time.monotonic_ns()
    return Emission(id=request_id, tokens=(), emitted_ns=now, finish="error", message=reason)


def read_options(kind: type[Options], context: EngineContext) -> Options:
    """Read engine_options as one engine's own model; an unknown key is a ConfigError."""
    values: dict[str, Any] = context.settings.engine_options
    try:
        return kind.model_validate(values)
    except ValidationError as fault:
        wrong = [f"{'.'.join(map(str, e['loc'])) or 'options'}: {e['msg']}" for e in fault.errors()]
        raise ConfigError(
            found=f"engine_options of engine {context.settings.engine}: " + "; ".join(wrong),
            expected=f"the keys {', '.join(kind.model_fields)}",
            remedy="correct engine_options in the settings",
        ) from fault
