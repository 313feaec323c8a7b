"""Compare two dumps: preconditions, noise floor, walk, origin, cause, verdict.

comparison = compare_dumps(Path("a"), Path("b"), oracle=load_oracle(checkpoint, "trained"))
comparison.verdict.line
"""

from __future__ import annotations

from pathlib import Path

from dih20.parity.compare.coverage import coverage
from dih20.parity.compare.floor import Floors, floor_of_repeat, floor_of_rerun
from dih20.parity.compare.limits import Limits
from dih20.parity.compare.origin import origins_by_inputs
from dih20.parity.compare.preconditions import check_comparable
from dih20.parity.compare.replay import check_oracle, origins_by_replay, replay
from dih20.parity.compare.verdict import first_fresh, verdict_of
from dih20.parity.compare.walk import Walk
from dih20.parity.dump import DumpReader
from dih20.parity.evidence import Evidence
from dih20.parity.model import Cause, Comparison, Finding
from dih20.parity.oracle import Oracle


def compare_dumps(
    a: Path,
    b: Path,
    *,
    repeat: Path | None = None,
    oracle: Oracle | None = None,
    full: bool = False,
    as_values: bool = False,
) -> Comparison:
    """Compare run B with run A, which is trusted.

    Args:
        repeat: a second dump of A's run; measures the noise floor. Without it, a reference run is
            repeated here when there is an oracle, and the floor is unknown otherwise.
        oracle: computes each site from B's own inputs, to separate fresh error from inherited.
        full: read every tensor, not only those where the runs begin to differ.
        as_values: compare tensors of different dtypes by their values.
    Raises:
        DumpUnusable: a dump is broken, or the runs are not comparable.
    """
    dump_a, dump_b = DumpReader(a), DumpReader(b)
    check_comparable(dump_a, dump_b, as_values=as_values)
    if oracle is not None:
        check_oracle(dump_a, oracle)
    limits = Limits.between(dump_a.facts, dump_b.facts)
    floors = _floors(dump_a, repeat, oracle)
    findings = Walk(dump_a, dump_b, limits, floors or {}, full=full).findings()
    replayed = oracle is not None and any(finding.diverges for finding in findings)
    if oracle is not None and replayed:
        own = Limits.of_replay(dump_b.facts, oracle.mode)
        findings = origins_by_replay(findings, replay(dump_b, dump_b, oracle, own))
    else:
        findings = origins_by_inputs(findings, dump_a.config)
    covered = coverage(dump_a, dump_b)
    causes = _causes(first_fresh(findings), dump_a, dump_b, oracle)
    return Comparison(
        verdict=verdict_of(findings, covered, causes, replayed=replayed),
        findings=tuple(findings),
        coverage=covered,
        a=dump_a.facts,
        b=dump_b.facts,
        floor_measured=floors is not None,
    )


def _floors(a: DumpReader, repeat: Path | None, oracle: Oracle | None) -> Floors | None:
    if repeat is not None:
        return floor_of_repeat(a, DumpReader(repeat))
    if oracle is not None and (a.facts.engine, a.facts.mode) == ("reference", oracle.mode):
        return floor_of_rerun(a, oracle)
    return None


def _causes(
    finding: Finding | None, a: DumpReader, b: DumpReader, oracle: Oracle | None
) -> tuple[Cause, ...]:
    if finding is None:
        return ()
    from dih20.parity.diagnosis import diagnose

    evidence = Evidence(finding=finding, dump_a=a, dump_b=b, oracle=oracle)
    return tuple(diagnose(finding, evidence))
