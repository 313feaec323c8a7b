"""What must hold before two dumps are compared; each violation has its own error."""

from __future__ import annotations

from collections import defaultdict

from dih20.errors import DumpUnusable
from dih20.parity.dump import DumpReader
from dih20.parity.merging import disagreeing_ranks
from dih20.parity.sites import site_of


def check_comparable(a: DumpReader, b: DumpReader, *, as_values: bool) -> None:
    """Refuse dumps of other tokens, positions, config or weights, and dumps that are broken."""
    if a.folder.resolve() == b.folder.resolve():
        raise DumpUnusable(
            found=f"A and B are both {a.folder}",
            expected="the dumps of two runs: a dump always agrees with itself",
            remedy="give the dump of the run in question as B",
        )
    _check_run(a, b)
    for dump in (a, b):
        _check_layers_differ(dump)
        _check_ranks(dump)
    common = [key for key in a.keys if key in b]
    if not common:
        raise DumpUnusable(
            found=f"no site is in both {a.folder} and {b.folder}",
            expected="the same names for the same places",
            remedy="dump both runs with the site maps of dih20/parity/maps",
        )
    for step, site in common:
        _check_tensor(a, b, step, site, as_values=as_values)


def _check_run(a: DumpReader, b: DumpReader) -> None:
    if a.facts.tokens != b.facts.tokens:
        raise _differs("tokens", *_first_difference(a.facts.tokens, b.facts.tokens))
    if a.facts.positions != b.facts.positions:
        raise _differs("positions", *_first_difference(a.facts.positions, b.facts.positions))
    keys = sorted(set(a.facts.config) | set(b.facts.config))
    for key in keys:
        left, right = a.facts.config.get(key), b.facts.config.get(key)
        if left != right:
            raise _differs(f"config key {key!r}", str(left), str(right))
    if a.facts.weights != b.facts.weights:
        raise _differs("weights", a.facts.weights[:16], b.facts.weights[:16])


def _differs(what: str, a: str, b: str) -> DumpUnusable:
    return DumpUnusable(
        found=f"the runs have other {what}: A {a}, B {b}",
        expected="the same token ids, positions, config and weights in both",
        remedy="dump both runs with the same checkpoint and the same prompt",
    )


def _first_difference(a: tuple[object, ...], b: tuple[object, ...]) -> tuple[str, str]:
    if len(a) != len(b):
        return f"{len(a)} steps", f"{len(b)} steps"
    step = next(step for step, pair in enumerate(zip(a, b, strict=True)) if pair[0] != pair[1])
    return f"step {step}: {_short(a[step])}", f"{_short(b[step])}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 80 else text[:77] + "..."


def _check_layers_differ(dump: DumpReader) -> None:
    """The same tensor under every layer's name means that the capture looked at one layer only."""
    digests: dict[tuple[int, str], list[str]] = defaultdict(list)
    for step, name in dump.keys:
        site = site_of(name, dump.config)
        record = dump.record(step, name)
        if site.layer is not None and site.kind in ("dense", "quantised"):
            # a fault can make a tensor constant everywhere; that is for the comparison to find
            constant = record.statistics.is_constant
            digests[step, f"{site.part}.{site.leaf}"].append(
                "" if constant else record.statistics.digest
            )
    for (step, leaf), found in digests.items():
        if len(found) >= 2 and len(set(found)) == 1 and found[0]:
            raise DumpUnusable(
                found=f"{dump.folder}: {leaf} is the same tensor in all {len(found)} layers "
                f"of step {step}",
                expected="each layer's own tensor",
                remedy="correct the site map: its module path lacks {layer}, or names a shared buffer",
            )


def _check_ranks(dump: DumpReader) -> None:
    for step, site in dump.keys:
        records = dump.records(step, site)
        for rank in disagreeing_ranks(records):
            raise DumpUnusable(
                found=f"{dump.folder}: rank {rank}'s copy of {site}, step {step}, differs from rank 0's",
                expected="equal copies, since the site map says that it is replicated",
                remedy="if it is a slice or a summand, say so in the site map (shard); "
                "if not, the ranks have run apart there",
            )


def _check_tensor(a: DumpReader, b: DumpReader, step: int, site: str, *, as_values: bool) -> None:
    left, right = a.record(step, site), b.record(step, site)
    shape_a, shape_b = a.shape(step, site), b.shape(step, site)
    where = f"{site}, step {step}"
    is_selection = site_of(site, a.config).kind == "selection"
    if shape_a != shape_b and not is_selection:
        transposed = sorted(shape_a) == sorted(shape_b)
        raise DumpUnusable(
            found=f"{where} is {shape_b} in B and {shape_a} in A"
            + (": its dimensions are transposed" if transposed else ""),
            expected="the same shape in both",
            remedy="correct the shape or permutation of the site in the site map, and dump again",
        )
    if left.dtype != right.dtype and not as_values and not is_selection:
        raise DumpUnusable(
            found=f"{where} is {right.dtype} in B and {left.dtype} in A",
            expected="the same dtype in both",
            remedy="if the values are what is to be compared, run again with --as-values",
        )
    nan_a = sum(record.statistics.nan for record in a.records(step, site))
    nan_b = sum(record.statistics.nan for record in b.records(step, site))
    if nan_a:
        sides = "NaN on both sides" if nan_b else "NaN in A, the run that is trusted"
        raise DumpUnusable(
            found=f"{where}: {sides} ({nan_a} in A, {nan_b} in B)",
            expected="a trusted run without NaN: two NaN prove nothing",
            remedy="find out why A has NaN there, or give a sound run as A",
        )
