"""Which shared libraries this process really has in memory."""

from __future__ import annotations

from pathlib import Path


def mapped_files(stem: str, maps: str | None = None) -> list[str]:
    """Give the distinct files mapped by this process whose name starts with a stem like "libcuda.so".

    Args:
        maps: text in the form of /proc/self/maps; this process's own when left out.
    """
    text = Path("/proc/self/maps").read_text() if maps is None else maps
    found: dict[str, None] = {}
    for line in text.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/"):
            path = fields[5].removesuffix(" (deleted)")
            if Path(path).name.startswith(stem):
                found[path] = None
    return list(found)
