"""Packages import only those to their left in the order that docs/architecture.md gives."""

from __future__ import annotations

import re

from dih20.paths import REPOSITORY

IMPORT = re.compile(r"^ *(?:from|import) dih20(?:\.| import )(\w+)", re.MULTILINE)


def places() -> dict[str, int]:
    """Give the place of each package and module; those that share one may not import each other."""
    text = (REPOSITORY / "docs/architecture.md").read_text()
    (order,) = re.findall(r"^packages to its left: (.+)\.$", text, re.MULTILINE)
    groups = [re.findall(r"\w+", group) for group in order.split("<")]
    return {name: place for place, names in enumerate(groups) for name in names}


def test_no_package_imports_one_to_its_right() -> None:
    place = places()
    assert {"errors", "image", "patches", "explain", "rehearse"} <= set(place)
    edge = {name for name, at in place.items() if at == 0}
    wrong = []
    for name in set(place) - edge:
        for path in sorted((REPOSITORY / "dih20" / name).rglob("*.py")):
            if path.name == "tasks.py":
                continue
            for other in IMPORT.findall(path.read_text()):
                if other != name and place.get(other, -1) >= place[name]:
                    wrong.append(f"{path.relative_to(REPOSITORY)} imports dih20.{other}")
    assert wrong == []
