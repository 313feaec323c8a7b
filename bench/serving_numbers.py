"""Write the numbers of docs/serving.md from bench/results: python -m bench.serving_numbers

A test holds the guide to the file, so that a number is never typed by hand.
"""

from __future__ import annotations

import json
from typing import Any

from bench.serve_load import RESULT
from dih20.paths import REPOSITORY

GUIDE = REPOSITORY / "docs" / "serving.md"
START, END = "<!-- numbers -->", "<!-- end of numbers -->"


def table(result: dict[str, Any]) -> str:
    """Give the block between the markers."""
    heads = ["streams, step, pattern", "emission to socket write p50, p99"]
    heads += ["emission to receipt p50, p99", "gateway, per token", "errors"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|---|---|"]
    for row in result["gateway"]:
        wrote, received = row["emission_to_socket_write_ms"], row["emission_to_receipt_ms"]
        lines.append(
            f"| {row['streams']}, {row['step_ms']} ms, {row['pattern']} "
            f"| {wrote['p50']}, {wrote['p99']} ms | {received['p50']}, {received['p99']} ms "
            f"| {row['gateway_us_per_token']} µs | {len(row['errors'])} in {row['tokens']:,} tokens |"
        )
    lines += [
        "",
        "| start | HTTP up | ready | engine ready to `readyz` (of it the known answers) | first token |",
    ]
    lines += ["|---|---|---|---|---|"]
    for name, row in result["starts"].items():
        lines.append(
            f"| {name} | {row['http_up_s']} s | {row['ready_s']} s | {row['engine_ready_to_readyz_s']} s "
            f"({row['known_answer_run_s']} s) | {row['first_token_s']} s |"
        )
    machine = result["machine"]
    load = f"others on the machine: load average {machine['load_average_before']}"
    if machine["real_time_priority"]:
        load += ", measured processes at real-time priority"
    lines += ["", f"{machine['cpu']}, {machine['cores']} cores, {result['date']}; {load}."]
    return "\n".join(lines)


def with_numbers(text: str) -> str:
    """Give the guide's text with the block between its markers written anew."""
    head, rest = text.split(START, 1)
    _, tail = rest.split(END, 1)
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    return f"{head}{START}\n{table(result)}\n{END}{tail}"


def main() -> None:
    GUIDE.write_text(with_numbers(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
