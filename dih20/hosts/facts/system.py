"""Facts about the machine: its system, disk, limits and ports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dih20.hosts.facts.fact import Fact
from dih20.hosts.runner import Result, checked

UNLIMITED = -1

# One round trip for what is small; each line is `key=value`. df follows a path that is not there
# yet to its nearest parent. $1: work_dir; the rest: folders that are to be mounted.
_SYSTEM = """
. /etc/os-release 2>/dev/null
folder=$1
shift
for mount; do [ -d "$mount" ] || printf 'missing_mount=%s\\n' "$mount"; done
while [ ! -e "$folder" ] && [ "$folder" != / ]; do folder=$(dirname -- "$folder"); done
if [ -w "$folder" ]; then writable=yes; else writable=no; fi
printf 'os=%s\\nkernel=%s\\narch=%s\\n' "$PRETTY_NAME" "$(uname -r)" "$(uname -m)"
printf 'user=%s\\nhostname=%s\\n' "$(id -un)" "$(uname -n)"
printf 'work_dir_parent=%s\\nwork_dir_writable=%s\\n' "$folder" "$writable"
printf 'work_dir_free_kib=%s\\n' "$(df -Pk -- "$folder" | awk 'NR==2 {print $4}')"
printf 'shm_kib=%s\\n' "$(df -Pk /dev/shm 2>/dev/null | awk 'NR==2 {print $2}')"
printf 'memlock_kib=%s\\n' "$(ulimit -H -l)"
printf 'zstd=%s\\n' "$(command -v zstd)"
printf 'toolkit=%s\\n' "$(PATH="$PATH:/usr/bin:/usr/local/bin" command -v nvidia-container-runtime-hook)"
"""


@dataclass(frozen=True, kw_only=True)
class System:
    """The machine itself. Sizes in bytes; memlock is the login's hard limit, -1 without limit."""

    os: str
    kernel: str
    arch: str
    user: str
    hostname: str
    work_dir_parent: str
    work_dir_writable: bool
    work_dir_free_bytes: int
    missing_mounts: tuple[str, ...]
    shm_bytes: int
    memlock_bytes: int
    zstd: str
    gpu_toolkit: str


def system(work_dir: str, mounts: Sequence[str] = ()) -> Fact[System]:
    return Fact(argv=("sh", "-c", _SYSTEM, "sh", work_dir, *mounts), parse=parse_system)


def parse_system(result: Result) -> System:
    """Read the key=value lines; a key that the script could not fill is empty or 0."""
    checked(result, "the host")
    pairs = [line.partition("=")[::2] for line in result.text.splitlines() if "=" in line]
    values = dict(pairs)
    return System(
        os=values.get("os", ""),
        kernel=values.get("kernel", ""),
        arch=values.get("arch", ""),
        user=values.get("user", ""),
        hostname=values.get("hostname", ""),
        work_dir_parent=values.get("work_dir_parent", ""),
        work_dir_writable=values.get("work_dir_writable") == "yes",
        work_dir_free_bytes=_kib(values, "work_dir_free_kib"),
        missing_mounts=tuple(value for key, value in pairs if key == "missing_mount"),
        shm_bytes=_kib(values, "shm_kib"),
        memlock_bytes=UNLIMITED
        if values.get("memlock_kib") == "unlimited"
        else _kib(values, "memlock_kib"),
        zstd=values.get("zstd", ""),
        gpu_toolkit=values.get("toolkit", ""),
    )


def _kib(values: Mapping[str, str], key: str) -> int:
    text = values.get(key, "")
    return int(text) * 1024 if text.isdigit() else 0


def free_bytes(folder: str) -> Fact[int | None]:
    """Ask for the free space where a folder lies; None when it cannot be seen from this login."""
    return Fact(argv=("df", "-Pk", "--", folder), parse=parse_free)


def parse_free(result: Result) -> int | None:
    fields = result.text.splitlines()[1].split() if result.ok else []
    return int(fields[3]) * 1024 if len(fields) > 3 and fields[3].isdigit() else None


def listening_ports() -> Fact[frozenset[int] | None]:
    """Ask which TCP ports are listened on; None when the host cannot say."""
    script = "ss -Hltn 2>/dev/null || cat /proc/net/tcp /proc/net/tcp6"
    return Fact(argv=("sh", "-c", script), parse=parse_ports)


def parse_ports(result: Result) -> frozenset[int] | None:
    """Read ss, or the kernel's own table where ss is missing (0A is LISTEN, ports in hex)."""
    if not result.ok:
        return None
    ports: set[int] = set()
    for line in result.text.splitlines():
        if match := re.match(r"LISTEN\s+\d+\s+\d+\s+\S+?:(\d+)\s", line):
            ports.add(int(match[1]))
        elif match := re.match(r"\s*\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 0A ", line):
            ports.add(int(match[1], 16))
    return frozenset(ports)
