"""Import what a wheel promises, inside the image; say which library and which symbol stand in the way.

    python3 import_wheel.py WHEEL_FOLDER NAME...       prints one JSON list, an entry per name

A NAME with a slash is a shared object below WHEEL_FOLDER that is loaded by itself, without its
package: for extensions whose package needs more than the image has, and for plain libraries. Each
name gets a process of its own, so that a crash is one entry and not the end. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
import time
from typing import Any

_UNDEFINED = re.compile(r"(?P<library>[^\s:]+\.so[^\s:]*): undefined symbol: (?P<symbol>[^\s,]+)")
_MISSING = re.compile(r"(?P<library>lib[^\s:]+\.so[^\s:]*): cannot open shared object file")

_LOAD = """
import ctypes, importlib, importlib.machinery, importlib.util, pathlib, sys
folder, name = sys.argv[1:3]
sys.path.insert(0, folder)
if importlib.util.find_spec("torch") is not None:
    import torch
if "/" in name:
    (path,) = pathlib.Path(folder).glob(name)
    module = path.name.split(".")[0]
    if hasattr(ctypes.CDLL(str(path)), "PyInit_" + module):
        loader = importlib.machinery.ExtensionFileLoader(module, str(path))
        spec = importlib.util.spec_from_file_location(module, path, loader=loader)
        loader.exec_module(importlib.util.module_from_spec(spec))
else:
    importlib.import_module(name)
"""


def demangled(symbol: str) -> str:
    """Give a C++ name as people write it; the symbol itself when it is not one."""
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return symbol
    demangle.restype = ctypes.c_char_p
    status = ctypes.c_int(-1)
    text = demangle(symbol.encode(), None, None, ctypes.byref(status))
    return text.decode() if status.value == 0 and text else symbol


def try_import(folder: str, name: str) -> dict[str, Any]:
    """Import one name in a process of its own."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, folder, name], capture_output=True, text=True, check=False
    )
    entry: dict[str, Any] = {"name": name, "ok": done.returncode == 0}
    entry["seconds"] = round(time.monotonic() - started, 2)
    if done.returncode == 0:
        return entry
    entry["exit_code"] = done.returncode
    lines = done.stderr.strip().splitlines()
    entry["message"] = (
        lines[-1] if lines else f"python ended with {done.returncode} and said nothing"
    )
    if found := _UNDEFINED.search(done.stderr):
        entry |= {"library": found["library"], "symbol": demangled(found["symbol"])}
    elif found := _MISSING.search(done.stderr):
        entry["missing_library"] = found["library"]
    return entry


if __name__ == "__main__":
    json.dump([try_import(sys.argv[1], name) for name in sys.argv[2:]], sys.stdout)
