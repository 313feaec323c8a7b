"""Are all headers there that a recipe names? Asked inside the build's container, before any compiler."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from dih20.config.reading import read_config
from dih20.errors import ConfigError, HeaderMismatch
from dih20.image import inside
from dih20.image.headers import TABLE, HeaderTable, header_facts
from dih20.lock import Lock
from dih20.paths import shown
from dih20.wheels.recipes import Recipe


def write_facts(lock: Lock, recipe: Recipe, job: Path) -> None:
    """Put the check and what it asks for into the job's folder: all headers of one recipe at once."""
    table = read_config(TABLE, HeaderTable)
    unknown = [name for name in recipe.build.headers if name not in table.required]
    if unknown:
        raise ConfigError(
            found=f"recipes/{recipe.name}.yaml: headers {', '.join(unknown)} are not in {shown(TABLE)}",
            expected="headers of that table, which says which package supplies each",
            remedy="add them there, with package and place",
        )
    asked = {name: table.required[name].model_dump() for name in recipe.build.headers}
    facts = {**header_facts(lock), "required": asked}
    (job / "headers.json").write_text(json.dumps(facts, sort_keys=True))
    shutil.copyfile(Path(inside.__file__).with_name("headers.py"), job / "headers.py")


def as_error(name: str, log: Path) -> HeaderMismatch:
    """Give the error with every missing header, as the check in the container reported them."""
    with log.open(errors="backslashreplace") as file:
        missing = [
            line.strip().removeprefix("error: ") for line in file if line.startswith("error: ")
        ]
    return HeaderMismatch(
        found=f"{name}: " + "; ".join(missing),
        expected="every header that the recipe names, in the overlay, the system or the toolkit",
        remedy=f"build the image again (./inv build-image), which supplies them; the log is {shown(log)}",
    )
