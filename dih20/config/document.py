"""A YAML file with the line of every key, so that an error can say where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dih20.errors import ConfigError
from dih20.paths import shown

# the C loader is ten times as fast, and knows the same lines
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class Document:
    """The values of a file and the line (from 1) of each key path in it."""

    path: Path
    values: dict[str, Any]
    lines: dict[KeyPath, int]

    def line_of(self, key: KeyPath) -> int:
        """Give the line of a key, or of the nearest one above it that is written in the file."""
        while key and key not in self.lines:
            key = key[:-1]
        return self.lines.get(key, 1)


def read_document(path: Path) -> Document:
    """Parse a file as one mapping; a syntax error or a key given twice is a ConfigError."""
    values: Any = None
    try:
        loader = _LOADER(path.read_text(encoding="utf-8"))
        root = loader.get_single_node()
        values = loader.construct_document(root) if root else {}
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(
            found=f"{shown(path)}:{line}: not YAML: {fault.problem or fault.context}",
            expected="a YAML mapping",
            remedy=f"correct line {line}, then run the command again",
        ) from fault
    except (yaml.YAMLError, UnicodeDecodeError) as fault:
        raise ConfigError(
            found=f"{shown(path)}: not YAML: {fault}",
            expected="a YAML mapping in UTF-8",
            remedy="correct the file, then run the command again",
        ) from fault
    if root is None:
        return Document(path=path, values={}, lines={})
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(
            found=f"{shown(path)}:1: the file holds a {root.tag.rsplit(':', 1)[-1]}, not a mapping",
            expected="`key: value` lines",
            remedy="correct the file, then run the command again",
        )
    lines: dict[KeyPath, int] = {}
    _collect_lines(root, (), path, lines)
    return Document(path=path, values=values, lines=lines)


def _collect_lines(node: yaml.Node, at: KeyPath, path: Path, lines: dict[KeyPath, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            where = (*at, str(key.value))
            line = key.start_mark.line + 1
            if where in lines:
                raise ConfigError(
                    found=f"{shown(path)}:{line}: key {dotted(where)!r} is given twice, first in line {lines[where]}",
                    expected="each key once",
                    remedy="remove one of the two lines, then run the command again",
                )
            lines[where] = line
            _collect_lines(value, where, path, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*at, index)] = item.start_mark.line + 1
            _collect_lines(item, (*at, index), path, lines)


def dotted(key: KeyPath) -> str:
    """Write a key path the way people say it: mounts[1].container."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
