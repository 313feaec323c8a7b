"""List the distributions here that carry a record of ours, and their files that were changed since. Prints JSON.

A file is compared with the hash that RECORD gives for it; what pip writes itself has none there.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any


def changed_files(distribution: metadata.Distribution) -> list[str]:
    """Give the files that are gone or are not what was installed; metadata's own list leaves out what is gone."""
    changed = []
    for name, digest, _ in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        method, _, wanted = digest.partition("=")
        if method != "sha256":
            continue
        path = Path(str(distribution.locate_file(name)))
        if not path.is_file():
            changed.append(f"{name} is gone")
            continue
        now = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
        if now.decode().rstrip("=") != wanted:
            changed.append(f"{name} was changed")
    return changed


def installed() -> list[dict[str, Any]]:
    found = []
    for distribution in metadata.distributions():
        record = distribution.read_text("dih20-provenance.json")
        if record is not None:
            found.append(
                {
                    "name": distribution.metadata["Name"],
                    "version": distribution.version,
                    "record": record,
                    "changed": changed_files(distribution),
                }
            )
    return sorted(found, key=lambda entry: str(entry["name"]))


if __name__ == "__main__":
    json.dump(installed(), sys.stdout)
