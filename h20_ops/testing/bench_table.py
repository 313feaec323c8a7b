"""Turn bench/results/<card>/*.json into Markdown, and keep such tables up to date in a file.

python3 -m h20_ops.testing.bench_table bench/results/h200            print the tables
python3 -m h20_ops.testing.bench_table bench/results/h200 --into h20_ops/README.md
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from h20_ops.errors import EvidenceError
from h20_ops.testing.bench import SHAPE_KEYS

BEGIN = "<!-- bench tables: written by h20_ops.testing.bench_table, do not edit -->"
END = "<!-- end of bench tables -->"
_COLUMNS = ("ours_us", "peer", "peer_us", "peer_source", "tflops", "gbps", "roofline_us")
_EXTRA_KEYS = ("indices", "record")


def table_of(record: dict[str, Any]) -> str:
    """Return the Markdown of one result file: a line of facts, then its rows."""
    rows = record["rows"]
    shape = [*SHAPE_KEYS[record["op"]], *(k for k in _EXTRA_KEYS if any(k in r for r in rows))]
    header = [*shape, *_COLUMNS, "h20_lower_bound_us"]
    clocks = record["clocks"]
    facts = (
        f"**{record['op']}** on {record['card']}: SM clock {clocks['sm_mhz']:.0f} MHz under load, "
        f"copy {record['copy_gbps'] / 1e3:.2f} TB/s, torch {record['torch']}, "
        f"{record['date'][:10]}, commit {record['commit'][:12]}"
    )
    lines = [
        facts,
        "",
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
    ]
    lines += ["| " + " | ".join(_cell(row.get(key)) for key in header) + " |" for row in rows]
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


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


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
