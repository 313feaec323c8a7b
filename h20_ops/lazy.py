"""Give a package functions that are imported on first use, even beside modules of the same name.

An operator lives in a module of its own name (`h20_ops.sparse_mla_prefill`). Importing such a
module makes Python bind the *module* on the package, which would hide the function of that name;
the package class below binds the function instead. The module stays importable by
`from h20_ops.sparse_mla_prefill import ...`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package whose public names are resolved from their modules on first access."""

    _lazy_names: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        module_name = self._lazy_names.get(name)
        if module_name is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module_name), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and self._lazy_names.get(name) == value.__name__:
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self._lazy_names})


def make_lazy(package: str, names: Mapping[str, str]) -> None:
    """Turn the imported `package` into a LazyPackage offering `names` (name -> module)."""
    module = sys.modules[package]
    module.__class__ = LazyPackage
    ModuleType.__setattr__(module, "_lazy_names", dict(names))
