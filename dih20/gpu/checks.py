"""`inv doctor`: our drop-in packages must not share a Python with the packages they replace.

Both put files under the same import name, so the one installed last wins file by file, and which
kernels run depends on the order of two pip commands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from dih20.doctor.registry import Finding, Subject, check

# import name -> the distribution that is our drop-in
DROP_INS = {"flash_mla": "h20-flash-mla"}

# Run by whichever Python is asked about; prints {import name: [distributions that own it]}.
OWNERS_SCRIPT = """
import importlib.metadata, json, sys
owners = {name: set() for name in sys.argv[1:]}
for dist in importlib.metadata.distributions():
    for file in dist.files or ():
        top = file.parts[0].removesuffix(".py")
        if top in owners:
            owners[top].add(dist.metadata["Name"])
print(json.dumps({name: sorted(found) for name, found in owners.items()}))
"""


def owners_command(python: str = "python3") -> list[str]:
    """Give the command that lists which distributions own the drop-ins' import names."""
    return [python, "-c", OWNERS_SCRIPT, *DROP_INS]


def judge(import_name: str, owners: list[str]) -> Finding:
    """Turn the distributions that own an import name into a finding."""
    drop_in = DROP_INS[import_name]
    others = [name for name in owners if _canonical(name) != drop_in]
    if len(others) == len(owners):
        found = ", ".join(owners) or "no distribution"
        return Finding.not_applicable(f"{import_name}: {found} here, our drop-in is not installed")
    if others:
        return Finding.fail(
            f"{import_name} belongs to {drop_in} and also to {', '.join(others)}",
            expected=f"one distribution that owns {import_name}, since their files overwrite each other",
            remedy=f"python3 -m pip uninstall {' '.join(owners)}, then install the wanted one again",
        )
    return Finding.ok(f"{import_name} belongs to {drop_in} alone")


def _examine(subject: Subject) -> Iterator[Finding]:
    result = subject.runner.run(owners_command(), check=False)
    if not result.ok:
        why = result.last_lines(1) or f"exit code {result.exit_code}"
        yield Finding.not_run(f"python3 on {subject.runner.name} could not list packages: {why}")
        return
    owners: dict[str, list[str]] = json.loads(result.text)
    for import_name in DROP_INS:
        yield judge(import_name, owners[import_name])


@check("drop-in packages", where="local")
def drop_ins_here(subject: Subject) -> Iterator[Finding]:
    """Look at python3 on this machine."""
    yield from _examine(subject)


@check("drop-in packages", where="host")
def drop_ins_on_host(subject: Subject) -> Iterator[Finding]:
    """Look at the host's python3."""
    yield from _examine(subject)


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
