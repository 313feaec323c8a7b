"""Turn bench/results/<card>/*.json into Markdown, and keep such tables up to date in a file.

python3 -m h20_ops.testing.bench_table bench/results/h200            print the tables
python3 -m h20_ops.testing.bench_table bench/results/h200 --into h20_ops/README.md
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from h20_ops.errors import EvidenceError
from h20_ops.testing.bench import SHAPE_KEYS

BEGIN = "<!-- bench tables: written by h20_ops.testing.bench_table, do not edit -->"
END = "<!-- end of bench tables -->"
_COLUMNS = {
    "ours_us": "ours, us",
    "tflops": "TFLOP/s",
    "gbps": "GB/s",
    "roofline_us": "roofline, us",
    "h20_lower_bound_us": "H20 at best, us",
}
_EXTRA_KEYS = ("indices", "record", "dtype", "kind", "copy_share")


def table_of(record: dict[str, Any]) -> str:
    """Return the Markdown of one result file: a line of facts, then a line per shape.

    Rows of the same measurement, one for each peer, become one line with its peers in one cell.
    """
    rows = record["rows"]
    shape = [*SHAPE_KEYS[record["op"]], *(k for k in _EXTRA_KEYS if any(k in r for r in rows))]
    clocks = record["clocks"]
    facts = (
        f"**{record['op']}** on {record['card']}: SM clock {clocks['sm_mhz']:.0f} MHz under load, "
        f"copy {record['copy_gbps'] / 1e3:.2f} TB/s, torch {record['torch']}, "
        f"{record['date'][:10]}, commit {record['commit'][:12]}"
    )
    header = [*shape, *_COLUMNS.values(), "others, us"]
    lines = [facts, "", _line(header), "|" + "---|" * len(header)]
    for _, group in itertools.groupby(
        rows, key=lambda row: [row.get(k) for k in (*shape, "ours_us")]
    ):
        same = list(group)
        cells = [_cell(same[0].get(key)) for key in (*shape, *_COLUMNS)]
        lines.append(_line([*cells, "; ".join(filter(None, map(_peer, same))) or "–"]))
    return "\n".join(lines) + "\n"


def tables_of(folder: Path) -> str:
    """Return the tables of every result file in a folder."""
    files = sorted(path for path in folder.glob("*.json"))
    return "\n".join(table_of(json.loads(path.read_text())) for path in files)


def replace_tables(text: str, tables: str) -> str:
    """Return text with what stands between the two marker lines replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise EvidenceError(
            "the file has no single pair of table markers",
            f"one line {BEGIN!r} and one line {END!r} after it",
            "put both lines where the tables belong",
        )
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables}\n{END}{rest.split(END)[1]}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return str(value)


def _peer(row: dict[str, Any]) -> str:
    if row["peer"] is None:
        return ""
    how = {"same_run": "same run", "recorded": "recorded"}[row["peer_source"]]
    return f"{row['peer']} {_cell(float(row['peer_us']))} ({how})"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench_table", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--into", type=Path, help="file whose marked part is replaced")
    options = parser.parse_args(arguments)
    tables = tables_of(options.folder)
    if options.into is None:
        print(tables)
        return 0
    try:
        options.into.write_text(replace_tables(options.into.read_text(), tables))
    except EvidenceError as error:
        print(f"{options.into}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
