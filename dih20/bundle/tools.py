"""What lies beside the parts: run.sh and the part of this package that runs on the host."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from dih20.paths import REPOSITORY

SCRIPT = "run.sh"
_ENTRY = '''"""Started by run.sh; says so itself when Python is too old to read the rest."""

import sys

if sys.version_info < (3, 11, 4):
    sys.stderr.write(
        "error: Python %s (%s)\\n" % (sys.version.split()[0], sys.executable)
        + "  expected: the Python that the bundle's packages are for, 3.12\\n"
        + "  next:     PYTHON=/path/to/python3.12 sh run.sh ...\\n"
    )
    raise SystemExit(45)

from dih20.bundle.onhost.command import main

raise SystemExit(main())
'''
_MODULES = ("dih20/__init__.py", "dih20/errors.py", "dih20/bundle/__init__.py")


def copy_tools(folder: Path) -> dict[str, str]:
    """Put them there and give the sha256 of each, by name."""
    onhost = sorted((REPOSITORY / "dih20" / "bundle" / "onhost").glob("*.py"))
    inside = [*_MODULES, *(str(path.relative_to(REPOSITORY)) for path in onhost)]
    for name in inside:
        target = folder / "host" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPOSITORY / name, target)
    (folder / "host" / "__main__.py").write_text(_ENTRY)
    shutil.copyfile(REPOSITORY / "bundle" / SCRIPT, folder / SCRIPT)
    (folder / SCRIPT).chmod(0o755)
    names = [SCRIPT, "host/__main__.py", *(f"host/{name}" for name in inside)]
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
