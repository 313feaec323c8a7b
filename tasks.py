"""The task collection: every dih20/*/tasks.py adds its tasks, one flat list of names.

A module is imported to be listed, so it imports nothing heavy at its top.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from invoke import Collection, Task

namespace = Collection()

for _path in sorted((Path(__file__).resolve().parent / "dih20").glob("*/tasks.py")):
    _module = importlib.import_module(f"dih20.{_path.parent.name}.tasks")
    for _task in vars(_module).values():
        if isinstance(_task, Task):
            namespace.add_task(_task)
