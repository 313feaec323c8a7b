"""Chat messages to a prompt, by the checkpoint's own template in a sandbox."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from dih20.errors import ConfigError

CANARY_TEMPLATE = Path(__file__).parent / "canary_chat.j2"


class TemplateRefused(Exception):
    """The template does not take these messages; the text says why."""


class ChatTemplate:
    """Render messages as the model was taught to read them."""

    def __init__(self, source: str, special: dict[str, str]) -> None:
        from jinja2 import TemplateSyntaxError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = time.strftime
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as fault:
            raise ConfigError(
                found=f"the chat template, line {fault.lineno}: {fault.message}",
                expected="a Jinja template",
                remedy="correct chat_template in the checkpoint's tokenizer_config.json",
            ) from fault
        self._special = special

    def render(self, messages: list[dict[str, Any]]) -> str:
        """Give the prompt up to where the answer begins."""
        from jinja2 import TemplateError

        try:
            # templates ask whether tools and documents are none, which undefined names are not
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special,
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as fault:
            raise TemplateRefused(str(fault)) from fault


def find_template(folder: Path, config: dict[str, Any]) -> str | None:
    """Give the template of a checkpoint: a file of its own, or a key of tokenizer_config.json."""
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    given = config.get("chat_template")
    if isinstance(given, list):
        given = {entry["name"]: entry["template"] for entry in given}.get("default")
    return given if isinstance(given, str) else None


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> str:
    raise TemplateRefused(message)
