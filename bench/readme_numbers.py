"""Write the numbers of README.md from bench/results: python -m bench.readme_numbers

A test holds README to these files, so that a number is never typed by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
START, END = "<!-- numbers -->", "<!-- end of numbers -->"


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "bench/results" / f"{name}.json").read_text())
    return found


def table() -> str:
    """Give the table: what was measured, the value, and on what."""
    deploy, wheels = _read("cpu/deploy"), _read("cpu/wheels")
    delta, transfer = deploy["delta"], deploy["transfer"]
    speed = transfer["median_mb_per_s"]
    rows = [
        (
            "image sent to a host that holds the base",
            (
                f"{delta['delta_on_base_bytes'] / 1e6:.0f} MB; a full `docker save` is "
                f"{delta['docker_save_bytes'] / 1e6:.0f} MB ({delta['full_archive_zstd_bytes'] / 1e6:.0f} MB with zstd)"
            ),
        ),
        (
            f"transfer of {transfer['file_mib']} MiB over loopback SSH",
            (
                f"{speed['ours']} MB/s, scp {speed['scp']} MB/s: {transfer['ours_against_scp']} of scp "
                f"({speed['ours_verified']} MB/s with the hash checked on the host)"
            ),
        ),
        ("deploy with nothing changed", f"{deploy['noop_deploy_s']['median']} s"),
        (
            "`build-vendor` with only hits",
            (
                f"{wheels['command_with_only_hits_s']['median']} s; the look-up in the store "
                f"{max(w['lookup_s'] for w in wheels['wheels'].values())} s at most"
            ),
        ),
        ("`./inv --list`", f"{wheels['inv_list_s']['median']} s"),
    ]
    lines = ["| what | median |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)]
    note = (
        f"\nOn {deploy['machine']['cores']} cores, {deploy['date']}; files: "
        "[deploy.json](bench/results/cpu/deploy.json), [wheels.json](bench/results/cpu/wheels.json). "
        "Operators on the H200: [h20_ops](h20_ops/README.md)."
    )
    return "\n".join([*lines, note])


def with_numbers(text: str) -> str:
    """Give README's text with the block between its markers written anew."""
    head, rest = text.split(START, 1)
    _, tail = rest.split(END, 1)
    return f"{head}{START}\n{table()}\n{END}{tail}"


def main() -> None:
    path = ROOT / "README.md"
    path.write_text(with_numbers(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
