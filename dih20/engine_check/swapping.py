"""Give an attribute or an entry another value for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put `value` in place of an attribute, and take it out again; an own attribute stays one."""
    own = vars(owner)
    was_own, before = name in own, own.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if was_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextmanager
def changed_bytes(tensor: Any, value: Any) -> Iterator[None]:
    """Put other values into a tensor's memory, and the old ones back."""
    before = tensor.detach().clone()
    tensor.detach().copy_(value)
    try:
        yield
    finally:
        tensor.detach().copy_(before)
