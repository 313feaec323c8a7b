"""Facts about the GPUs, from nvidia-smi's CSV queries and the fabric manager."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass

from dih20.hosts.facts.fact import Fact
from dih20.hosts.runner import Result

_FORMAT = "--format=csv,noheader,nounits"
_FIELDS = (
    "index",
    "uuid",
    "name",
    "compute_cap",
    "driver_version",
    "memory.total",
    "memory.used",
    "mig.mode.current",
    "ecc.errors.uncorrected.volatile.total",
    "fabric.state",
    "fabric.status",
)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One line of nvidia-smi. `fabric_state` is N/A where there is no NVSwitch."""

    index: int
    uuid: str
    name: str
    compute_capability: str
    driver: str
    memory_mib: int
    used_mib: int
    is_mig: bool
    uncorrected_errors: int
    fabric_state: str
    fabric_status: str


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU; used_mib is 0 where the driver does not say."""

    gpu_uuid: str
    pid: int
    name: str
    used_mib: int


@dataclass(frozen=True, kw_only=True)
class RowRemap:
    """The state of a GPU's spare memory rows."""

    gpu_uuid: str
    is_pending: bool
    has_failed: bool


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """The GPUs listed; `fault` is what nvidia-smi said when it failed."""

    gpus: tuple[Gpu, ...] = ()
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class FabricManager:
    """The service that joins GPUs over NVSwitch: systemd's word for it, and its version."""

    service: str
    version: str


def gpus() -> Fact[Gpus]:
    return Fact(argv=("nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", _FORMAT), parse=parse_gpus)


def parse_gpus(result: Result) -> Gpus:
    if not result.ok:
        said = result.last_lines(3)
        return Gpus(fault=said if result.exit_code != 127 else "nvidia-smi is not installed")
    return Gpus(gpus=tuple(_gpu(row) for row in _rows(result) if len(row) == len(_FIELDS)))


def _gpu(row: list[str]) -> Gpu:
    values = dict(zip(_FIELDS, row, strict=True))
    return Gpu(
        index=int(values["index"]),
        uuid=values["uuid"],
        name=values["name"],
        compute_capability=values["compute_cap"],
        driver=values["driver_version"],
        memory_mib=_number(values["memory.total"]),
        used_mib=_number(values["memory.used"]),
        is_mig=values["mig.mode.current"] == "Enabled",
        uncorrected_errors=_number(values["ecc.errors.uncorrected.volatile.total"]),
        fabric_state=values["fabric.state"],
        fabric_status=values["fabric.status"],
    )


def processes() -> Fact[tuple[GpuProcess, ...]]:
    query = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"
    return Fact(argv=("nvidia-smi", query, _FORMAT), parse=parse_processes)


def parse_processes(result: Result) -> tuple[GpuProcess, ...]:
    return tuple(
        GpuProcess(gpu_uuid=row[0], pid=_number(row[1]), name=row[2], used_mib=_number(row[3]))
        for row in _rows(result)
        if len(row) == 4
    )


def row_remaps() -> Fact[tuple[RowRemap, ...]]:
    query = "--query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure"
    return Fact(argv=("nvidia-smi", query, _FORMAT), parse=parse_row_remaps)


def parse_row_remaps(result: Result) -> tuple[RowRemap, ...]:
    return tuple(
        RowRemap(gpu_uuid=row[0], is_pending=_yes(row[1]), has_failed=_yes(row[2]))
        for row in _rows(result)
        if len(row) == 3
    )


def links() -> Fact[dict[int, tuple[str, ...]]]:
    """Ask how each GPU reaches the other GPUs: NV18, SYS, PHB ... in the order of the others."""
    return Fact(argv=("nvidia-smi", "topo", "-m"), parse=parse_links)


def parse_links(result: Result) -> dict[int, tuple[str, ...]]:
    """Read the matrix; its header is underlined with escape codes even when it is not a terminal."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", result.text).splitlines()
    header = next((line.split() for line in lines if line.split()[:1] == ["GPU0"]), [])
    columns = [index for index, name in enumerate(header) if re.fullmatch(r"GPU\d+", name)]
    found: dict[int, tuple[str, ...]] = {}
    for line in lines:
        cells = line.split()
        if cells and re.fullmatch(r"GPU\d+", cells[0]) and "X" in cells[1:]:
            row = [cells[1 + column] for column in columns if 1 + column < len(cells)]
            found[int(cells[0][3:])] = tuple(cell for cell in row if cell != "X")
    return found


def fabric_manager() -> Fact[FabricManager]:
    script = (
        "systemctl is-active nvidia-fabricmanager 2>/dev/null || true; "
        "PATH=$PATH:/usr/bin:/usr/sbin nv-fabricmanager --version 2>&1 || true"
    )
    return Fact(argv=("sh", "-c", script), parse=parse_fabric_manager)


def parse_fabric_manager(result: Result) -> FabricManager:
    lines = result.text.splitlines()
    version = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", result.text)
    service = lines[0].strip() if lines and re.fullmatch(r"[a-z]+", lines[0].strip()) else "unknown"
    return FabricManager(service=service, version=version[1] if version else "")


def _rows(result: Result) -> Iterator[list[str]]:
    if result.ok:
        for row in csv.reader(result.text.splitlines(), skipinitialspace=True):
            yield [cell.strip() for cell in row]


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0  # "[N/A]" and "[Not Supported]" count nothing


def _yes(text: str) -> bool:
    return text.lower() in ("yes", "1")
