"""What `inv parity` does, verb by verb."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dih20 import groups
from dih20.console import Console
from dih20.errors import ParityDiverged, ParityIncomplete, UsageError
from dih20.parity.planning import outcome_folder, plan_verb


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of every verb; each reads those it knows."""

    checkpoint: str = ""
    mode: str = "trained"
    repeat: str = ""
    out: str = ""
    prompt: str = ""
    tokens: str = ""
    length: int = 700
    seed: int = 0
    decode: int = 4
    data_class: str = ""
    statistics_only: bool = False
    full: bool = False
    as_values: bool = False
    site: str = ""
    bytes_per_token: int = 528
    head_dim: int = 512


def run_verb(
    ui: Console, verb: str, a: str, b: str, options: Options, *, only_plan: bool = False
) -> dict[str, Any]:
    """Do one verb; torch is installed first if it is missing. only_plan: say what it would write."""
    verbs: dict[str, Callable[[Console, str, str, Options], dict[str, Any]]] = {
        "dump": _dump,
        "compare": _compare,
        "replay": _replay,
        "report": _report,
        "layout": _layout,
    }
    if verb not in verbs:
        raise UsageError(
            found=f"no verb {verb!r}",
            expected=f"one of {', '.join(verbs)}",
            remedy="run `./inv --help parity`",
        )
    if only_plan:
        plan = plan_verb(verb, a, b, options.out)
        ui.plan(plan)
        return plan.as_dict()
    groups.ensure(ui, "torch")
    return verbs[verb](ui, a, b, options)


def _dump(ui: Console, checkpoint: str, folder: str, options: Options) -> dict[str, Any]:
    from dih20.parity.capture import dump_reference, reference_facts
    from dih20.parity.checkpoints import load_oracle
    from dih20.parity.prompts import rows_of, tokens_for
    from v41.model import Reference

    data_class = _data_class(options, Path(checkpoint))
    with ui.step("read", checkpoint):
        oracle = load_oracle(Path(checkpoint), options.mode)
    tokens = tokens_for(
        Path(checkpoint),
        oracle.config,
        prompt=options.prompt,
        tokens=options.tokens,
        length=options.length,
        seed=options.seed,
    )
    rows = rows_of(tokens.shape[1], options.decode)
    facts = reference_facts(
        oracle.config,
        mode=options.mode,
        weights=oracle.weights_hash,
        data_class=data_class,
    )
    with ui.step("dump", folder) as step:
        dump = dump_reference(
            Path(folder),
            lambda tap: Reference(
                oracle.config,
                oracle.weights,
                numerics=oracle.numerics,
                compressed_ids=oracle.compressed_ids,
                tap=tap,
            ),
            tokens,
            rows,
            facts,
            statistics_only=options.statistics_only,
        )
        step.note = f"{len(dump.keys)} tensors in {len(rows)} steps, {facts.data_class} data"
    return {"folder": folder, "tensors": len(dump.keys), "steps": len(rows)}


def _data_class(options: Options, checkpoint: Path) -> Any:
    if options.data_class in ("synthetic", "canary", "real"):
        return options.data_class
    if options.data_class:
        raise UsageError(
            found=f"--data {options.data_class}",
            expected="synthetic, canary or real",
            remedy="correct it",
        )
    from v41.canary import FOLDER

    return "canary" if checkpoint.resolve() == FOLDER.resolve() else "real"


def _compared(ui: Console, a: str, b: str, options: Options) -> tuple[Any, dict[str, str], Path]:
    from dih20.parity.checkpoints import load_oracle
    from dih20.parity.compare import compare_dumps
    from dih20.parity.dump import DumpReader
    from dih20.parity.output import write_outcome

    oracle = None
    if options.checkpoint:
        with ui.step("read", options.checkpoint):
            mode = DumpReader(Path(b)).facts.mode
            oracle = load_oracle(Path(options.checkpoint), mode)
    with ui.step("compare", f"{b} with {a}") as step:
        comparison = compare_dumps(
            Path(a),
            Path(b),
            repeat=Path(options.repeat) if options.repeat else None,
            oracle=oracle,
            full=options.full,
            as_values=options.as_values,
        )
        step.note = f"{len(comparison.findings)} tensors"
    folder = outcome_folder(b, options.out)
    paths = write_outcome(folder, comparison, Path(a), Path(b), oracle)
    return comparison, paths, folder


def _compare(ui: Console, a: str, b: str, options: Options) -> dict[str, Any]:
    comparison, paths, _ = _compared(ui, a, b, options)
    _say(ui, comparison, paths, judged=bool(options.checkpoint))
    verdict = comparison.verdict
    if verdict.outcome == "diverged":
        raise ParityDiverged(
            found=verdict.line,
            expected=f"what {a} has there, from the same inputs",
            remedy=f"run `python {paths['repro']}/repro.py`, where torch and safetensors are"
            if "repro" in paths
            else f"see {paths['findings']}; dump full tensors for a repro folder",
        )
    if verdict.outcome == "incomplete":
        raise ParityIncomplete(
            found=verdict.line,
            expected="every layer kind, phase and case compared",
            remedy="dump both runs with a longer prompt and decode steps, and with every site",
        )
    return {"verdict": verdict.line, "files": paths}


def _say(ui: Console, comparison: Any, paths: dict[str, str], *, judged: bool) -> None:
    from dih20.parity.table import rows_around_first

    rows = rows_around_first(comparison)
    if rows:
        ui.table(("site", "kind", "phase", "step", "measure", "limit", "origin", "remark"), rows)
    if comparison.verdict.outcome == "ok":
        ui.line(comparison.verdict.line)
    cover = comparison.coverage
    ui.line(
        f"data: {cover.data_class}; noise floor {'measured' if comparison.floor_measured else 'NOT measured'}"
    )
    if cover.missing:
        ui.warn("not covered: " + ", ".join(cover.missing))
    if cover.not_compared:
        ui.warn(
            f"{len(cover.not_compared)} sites are in one dump only, the first {cover.not_compared[0]}"
        )
    for cause in comparison.verdict.looks_like:
        ui.line(f"looks like {cause.title} ({cause.confidence:.0%}): {cause.because}")
    if comparison.verdict.outcome == "diverged" and not comparison.verdict.looks_like:
        ui.line("no known signature" + ("" if judged else "; causes are tested with --checkpoint"))
    for name, path in paths.items():
        ui.line(f"{name}: {path}")


def _replay(ui: Console, inputs: str, outputs: str, options: Options) -> dict[str, Any]:
    from dih20.parity.checkpoints import load_oracle
    from dih20.parity.compare.limits import Limits
    from dih20.parity.compare.replay import replay
    from dih20.parity.dump import DumpReader
    from dih20.parity.table import replay_rows

    if not options.checkpoint:
        raise UsageError(
            found="no checkpoint",
            expected="--checkpoint FOLDER: the reference computes the sites from its weights",
            remedy="give the checkpoint that the dumps were made with",
        )
    oracle = load_oracle(Path(options.checkpoint), options.mode)
    given, made = DumpReader(Path(inputs)), DumpReader(Path(outputs))
    with ui.step("replay", f"{inputs} in mode {options.mode}"):
        limits = Limits.of_replay(made.facts, options.mode)
        replayed = replay(given, made, oracle, limits)
    rows = replay_rows(replayed, made, options.site)
    ui.table(("site", "step", "measure", "limit", "exceeds", "remark"), rows)
    return {"sites": len(replayed), "exceed": sum(m.exceeds for m, _ in replayed.values())}


def _report(ui: Console, a: str, b: str, options: Options) -> dict[str, Any]:
    from dih20.parity.report import write_report

    comparison, paths, folder = _compared(ui, a, b, options)
    with ui.step("write", str(folder / "report.html")):
        page = write_report(folder / "report.html", comparison, Path(a), Path(b))
    ui.line(comparison.verdict.line)
    return {"verdict": comparison.verdict.line, "report": str(page), "files": paths}


def _layout(ui: Console, store: str, load: str, options: Options) -> dict[str, Any]:
    from dih20.parity.layouts import compare_layouts

    result = compare_layouts(
        store, load, bytes_per_token=options.bytes_per_token, head_dim=options.head_dim
    )
    ui.line(result["layout"])
    return result
