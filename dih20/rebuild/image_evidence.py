"""Write down what double builds of an image gave, so that it can be read without building."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.console import Console
from dih20.paths import shown

if TYPE_CHECKING:
    from dih20.config import ImageConfig
    from dih20.lock import Lock


def write_evidence(
    ui: Console, path: Path, config: ImageConfig, lock: Lock, pairs: Sequence[dict[str, Any]]
) -> None:
    """Write the pairs to a JSON file, with where they were built and how to repeat it."""
    base = lock.base(config.base)
    equal = sum(pair["equal"] for pair in pairs)
    ids = {pair[which]["id"] for pair in pairs for which in ("first", "second")}
    content = {
        "what": f"{config.name} built twice without cache: another time, another folder of inputs and of steps",
        "label": f"{config.base} {base.python_tag}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {"cores": os.cpu_count(), "load_average": round(os.getloadavg()[0], 1)},
        "lock": lock.identity,
        "repeat": f"./inv rebuild --check image --base {config.base} --only {config.name} --times {len(pairs)}",
        "equal": f"{equal} of {len(pairs)}",
        "ids": sorted(ids),
        "pairs": list(pairs),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    ui.line(f"  evidence in {shown(path.resolve())}")
