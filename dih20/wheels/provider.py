"""One provider of a name: the real package when it has proven itself, else our drop-in.

Proof is a contract file, wheels/.contracts/SHA256.json, written by whoever ran the contract tests of
the name against exactly that wheel on a Hopper GPU:

    {"wheel_sha256": "...", "passed": true, "tests": 12, "where": "1 x NVIDIA H20"}

Machine code for sm_90a is judged before, by the inspector: a wheel without it is never stored.
"""

from __future__ import annotations

import json
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from dih20.errors import WheelError
from dih20.paths import shown
from dih20.wheels.rows import Row
from dih20.wheels.store import Store, StoredWheel


def contract_file(store: Store, wheel: StoredWheel) -> Path:
    """Give where the contract of a wheel is kept."""
    return store.root / ".contracts" / f"{wheel.sha256}.json"


def why_not_real(store: Store, real: StoredWheel | None) -> str | None:
    """Give the reason why the real package may not have the name; None when it may."""
    if real is None:
        return "the real one is not built"
    path = contract_file(store, real)
    if not path.is_file():
        return (
            f"the real one holds sm_90a, but its contract tests were never run (no {shown(path)})"
        )
    try:
        contract = json.loads(path.read_text())
        same, passed = contract["wheel_sha256"] == real.sha256, contract["passed"]
    except (ValueError, KeyError, TypeError) as fault:
        raise WheelError(
            found=f"{shown(path)} is not a contract: {fault!r}",
            expected="wheel_sha256, passed, tests and where, as the contract tests write them",
            remedy="remove the file and run the contract tests again",
        ) from fault
    if not same:
        return "the contract is of another wheel"
    if passed is not True:
        return "the real one failed its contract tests"
    return None


def choose(
    store: Store, real: StoredWheel | None, drop_in: StoredWheel | None
) -> tuple[StoredWheel | None, str]:
    """Give the one provider and the reason for it."""
    reason = why_not_real(store, real)
    if reason is None:
        return real, "the real one: it holds sm_90a and passed its contract tests"
    if drop_in is None:
        return None, f"{reason}; there is no drop-in to take the name"
    return drop_in, f"the drop-in: {reason}"


def settle_providers(rows: Sequence[Row], store: Store) -> list[Row]:
    """Leave one wheel to each name that has a real package and a drop-in; the other row says why not."""
    settled = list(rows)
    for index, row in enumerate(rows):
        if row.recipe.policy != "real-or-drop-in" or row.status == "skipped":
            continue
        others = [i for i, r in enumerate(rows) if r.recipe.name == row.recipe.name and i != index]
        drop_in = rows[others[0]].wheel if others else None
        provider, why = choose(store, row.wheel, drop_in)
        for i in [index, *others]:
            wheel = rows[i].wheel
            if wheel is not None and wheel is not provider:
                settled[i] = replace(
                    rows[i], status="unusable", note=f"provider is {why}", wheel=None
                )
            elif wheel is not None:
                settled[i] = replace(rows[i], note=f"{rows[i].note}; provider is {why}")
    return settled


def refuse_two_providers(wheels: Iterable[StoredWheel]) -> None:
    """Raise when two wheels bring the same top-level package: which one wins would be chance."""
    owners: dict[str, list[str]] = defaultdict(list)
    for wheel in wheels:
        for package in top_level_packages(wheel):
            owners[package].append(wheel.path.name)
    twice = {package: names for package, names in owners.items() if len(set(names)) > 1}
    if twice:
        raise WheelError(
            found="; ".join(
                f"{package} comes from {' and '.join(names)}" for package, names in twice.items()
            ),
            expected="exactly one provider of each package",
            remedy="remove one of the two recipes' wheels, or make one a drop-in of the other",
        )


def top_level_packages(wheel: StoredWheel) -> set[str]:
    """Give the packages and modules that a wheel puts on the path."""
    with zipfile.ZipFile(wheel.path) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    return {top.removesuffix(".py") for top in tops if not top.endswith((".dist-info", ".data"))}
