"""Run every fault through dump, compare and diagnosis, and note what the tool said."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from dih20.parity.capture import dump_reference, reference_facts
from dih20.parity.compare import compare_dumps
from dih20.parity.diagnosis import NO_SIGNATURE
from dih20.parity.dump import DumpReader
from dih20.parity.model import Comparison, Phase
from dih20.parity.sabotage.base import Base, with_tight_gate
from dih20.parity.sabotage.catalogue import FAULTS, NEED_TIGHT_GATE, draw
from dih20.parity.sabotage.fault import Fault

MIN_CAUSES_RIGHT = 20  # of the faults that have a signature
FAULT_FREE_RUNS = 3
ATTEMPTS = 8  # draws of a fault until it changes anything


@dataclass(frozen=True, kw_only=True)
class Row:
    """One fault and what the tool said about it.

    cause, cause_named: NO_SIGNATURE where none fits.
    idle_draws: places that were drawn first, where the fault changed nothing.
    """

    fault: str
    detail: str
    site: str
    phase: Phase
    cause: str
    site_named: str
    phase_named: str
    cause_named: str
    also_named: tuple[str, ...]
    idle_draws: tuple[str, ...]
    error: float

    @property
    def site_right(self) -> bool:
        return (self.site, self.phase) == (self.site_named, self.phase_named)

    @property
    def cause_right(self) -> bool:
        return self.cause == self.cause_named


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """All rows, and how many findings the runs without a fault led to."""

    rows: tuple[Row, ...]
    accused_without_fault: tuple[int, ...]

    @property
    def known_causes_right(self) -> int:
        return sum(row.cause_right for row in self.rows if row.cause != NO_SIGNATURE)

    def failures(self, *, whole: bool) -> list[str]:
        """Say what is not as it should be; whole: the rows are those of the whole suite."""
        said = [
            f"{row.fault} ({row.detail}): injected at {row.site} in {row.phase}, "
            f"named {row.site_named or 'nothing'} in {row.phase_named or 'no phase'}"
            for row in self.rows
            if not row.site_right
        ]
        said += [
            f"{row.fault} ({row.detail}) has no signature, named {row.cause_named}"
            for row in self.rows
            if row.cause == NO_SIGNATURE and not row.cause_right
        ]
        if whole and self.known_causes_right < MIN_CAUSES_RIGHT:
            said.append(f"{self.known_causes_right} causes right, wanted {MIN_CAUSES_RIGHT}")
        said += [
            f"fault-free run {number}: {count} tensors accused"
            for number, count in enumerate(self.accused_without_fault, start=1)
            if count
        ]
        return said


class Suite:
    """Healthy dumps of a base, and the faults that are compared with them.

    keep: leave the dumps of broken runs in the folder, each under its fault's name; those of the
        gate, with healthy ones of their own, under "tight-gate".

    Example:
        suite = Suite(base, folder)
        outcome = suite.run(seed=1)
    """

    def __init__(self, base: Base, folder: Path, *, keep: bool = False) -> None:
        self.base, self.folder, self.keep = base, folder, keep
        self.healthy = self._dump("healthy", None)
        self.repeat = self._dump("repeat", None)
        self._tight: Suite | None = None

    def run(self, seed: int, only: Collection[str] = FAULTS) -> Outcome:
        """Inject the named faults one after another."""
        rows = tuple(self.rows(seed, only))
        return Outcome(rows=rows, accused_without_fault=self.accused_without_faults())

    def accused_without_faults(self) -> tuple[int, ...]:
        """Count what is accused in each run without a fault."""
        return tuple(self.accused_without_fault(n) for n in range(1, FAULT_FREE_RUNS + 1))

    def rows(self, seed: int, only: Collection[str] = FAULTS) -> Iterator[Row]:
        """Give the rows as they are found."""
        for name in FAULTS:
            if name in only:
                yield self._of(name)._row(name, seed)

    def _of(self, name: str) -> Suite:
        """Give the suite whose base lets a fault act."""
        if name not in NEED_TIGHT_GATE:
            return self
        if self._tight is None:
            folder = self.folder / "tight-gate"
            self._tight = Suite(with_tight_gate(self.base), folder, keep=self.keep)
        return self._tight

    def compare(self, name: str, fault: Fault) -> Comparison:
        """Dump a run with a fault and compare it with the healthy one."""
        return self._compared(self._dump(_folder_name(name), fault))

    def _compared(self, broken: Path) -> Comparison:
        found = compare_dumps(self.healthy, broken, repeat=self.repeat, oracle=self.base.oracle)
        self._done(broken)
        return found

    def _acting(self, name: str, seed: int) -> tuple[Fault, Path, list[str]]:
        """Draw a fault until it changes a bit of its site; give its dump and the draws without.

        A limit that no value reaches, or a sink beside a far larger logit, is no error to be found.
        """
        idle: list[str] = []
        for attempt in range(ATTEMPTS):
            fault = draw(self.base, seed, name, attempt)
            broken = self._dump(_folder_name(name), fault)
            if _differ(DumpReader(self.healthy), DumpReader(broken), fault.site):
                break
            idle.append(f"{fault.site} {'/'.join(fault.phases)}")
            if attempt < ATTEMPTS - 1:
                shutil.rmtree(broken)
        return fault, broken, idle

    def accused_without_fault(self, number: int) -> int:
        """Run without a fault on other tokens, twice, and count what is accused."""
        tokens = self.base.tokens.roll(7 * number, dims=1)
        runs = [self._dump(f"clean-{number}-{letter}", None, tokens) for letter in "ab"]
        comparison = compare_dumps(*runs, oracle=self.base.oracle)
        for run in runs:
            self._done(run)
        diverging = sum(finding.diverges for finding in comparison.findings)
        return max(diverging, int(comparison.verdict.first is not None))

    def _done(self, folder: Path) -> None:
        if not self.keep:
            shutil.rmtree(folder)

    def _row(self, name: str, seed: int) -> Row:
        fault, broken, idle = self._acting(name, seed)
        verdict = self._compared(broken).verdict
        first, causes = verdict.first, [cause.name for cause in verdict.looks_like]
        measure = None if first is None else first.fresh or first.measure
        return Row(
            fault=name,
            detail=fault.detail,
            site=fault.site,
            phase=fault.phase,
            cause=fault.cause or NO_SIGNATURE,
            site_named=first.site if first else "",
            phase_named=first.phase if first else "",
            cause_named=causes[0] if causes else NO_SIGNATURE,
            also_named=tuple(causes[1:]),
            idle_draws=tuple(idle),
            error=measure.value if measure else 0.0,
        )

    def _dump(self, name: str, fault: Fault | None, tokens: torch.Tensor | None = None) -> Path:
        """Dump a run; a broken one claims the healthy one's weights, as a real one would."""
        base, oracle = self.base, self.base.oracle
        facts = reference_facts(
            oracle.config, mode=oracle.mode, weights=oracle.weights_hash,
            data_class=base.data_class,
        )  # fmt: skip
        folder = self.folder / name
        dump_reference(
            folder,
            fault.build if fault else base.reference,
            base.tokens if tokens is None else tokens,
            base.rows,
            facts,
        )
        return folder


def _folder_name(fault: str) -> str:
    return fault.replace(",", "").replace(" ", "-")


def _differ(a: DumpReader, b: DumpReader, site: str) -> bool:
    """Say whether any bit of a site's tensors differs, without the comparison under test."""
    steps = [step for step, name in a.keys if name == site]
    return any(
        a.record(step, site).statistics.digest != b.record(step, site).statistics.digest
        for step in steps
    )
