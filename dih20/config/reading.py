"""Read a configuration file into its frozen model; every error names file, line and key."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from dih20.config.document import Document, KeyPath, dotted, read_document
from dih20.errors import ConfigError
from dih20.paths import shown


class Section(BaseModel):
    """Base of all configuration models: frozen, and no key that the model does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


Model = TypeVar("Model", bound=Section)


def read_config(path: Path, model: type[Model]) -> Model:
    """Give the file's content as a model, or one ConfigError that lists everything wrong in it."""
    if not path.is_file():
        raise _no_such_file(path)
    document = read_document(path)
    try:
        return model.model_validate(document.values)
    except ValidationError as fault:
        raise _wrong_content(document, model, fault) from fault


def find_config(folder: Path, name: str) -> Path:
    """Give the file for a name in a folder; a path to a file is taken as it is."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return Path(name).expanduser()
    return folder / f"{name}.yaml"


def _no_such_file(path: Path) -> ConfigError:
    there = sorted(p.stem for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.stem, there, n=1)
    listed = f"one of: {', '.join(there)}" if there else "a file; the folder holds none"
    return ConfigError(
        found=f"no file {shown(path)}",
        expected=f"in {shown(path.parent)}, {listed}",
        remedy=f"did you mean {near[0]!r}?"
        if near
        else "name one of them, or copy one and edit it",
    )


def _wrong_content(document: Document, model: type[Section], fault: ValidationError) -> ConfigError:
    lines, hints = [], []
    for detail in fault.errors():
        key = _written_key(detail["loc"])
        text, hint = _explain(model, key, detail)
        lines.append(f"{shown(document.path)}:{document.line_of(key)}: {text}")
        hints.append(hint)
    return ConfigError(
        found="\n  ".join(lines),
        expected="; ".join(dict.fromkeys(hints)),
        remedy="correct the file, then run the command again",
    )


def _explain(model: type[Section], key: KeyPath, detail: ErrorDetails) -> tuple[str, str]:
    name = dotted(key) or "the file"
    if detail["type"] == "extra_forbidden":
        known = sorted(known_keys(model, key[:-1]))
        near = difflib.get_close_matches(str(key[-1]), known, n=1, cutoff=0.5)
        mean = f"did you mean {near[0]!r}?" if near else "no such key is known there"
        return f"unknown key {name!r}: {mean}", f"keys {', '.join(known)}"
    if detail["type"] == "missing":
        return f"key {name!r} is missing", f"{name!r}, as in the example files under configs/"
    if detail["type"] == "value_error":
        fault = detail["ctx"]["error"]
        return f"{name}: {fault}", "values that the comments in the example file allow"
    return (
        f"{name}: {detail['input']!r}: {detail['msg'][0].lower()}{detail['msg'][1:]}",
        "values of the kind that the comments in the example file give",
    )


def _written_key(loc: KeyPath) -> KeyPath:
    """Drop what pydantic adds to a path and no file holds: tags of unions, function names."""
    return tuple(
        part
        for part in loc
        if isinstance(part, int) or not part.startswith(("function-", "tagged-"))
    )


def known_keys(model: type[BaseModel], at: KeyPath) -> set[str]:
    """Give the keys that a model knows at a place, list positions and mapping keys skipped."""
    models = {model}
    for part in at:
        inner: set[type[BaseModel]] = set()
        for each in models:
            field = each.model_fields.get(part) if isinstance(part, str) else None
            inner |= set(_models_in(field.annotation)) if field else {each}
        models = inner
    return {name for each in models for name in each.model_fields}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
