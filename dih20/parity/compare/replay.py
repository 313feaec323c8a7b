"""Teacher forcing: compute every site from a dump's own inputs, and measure what it adds itself."""

from __future__ import annotations

from dataclasses import fields, replace

import torch

from dih20.errors import DumpUnusable
from dih20.parity.compare.choices import as_mask
from dih20.parity.compare.limits import Limits
from dih20.parity.compare.measure import Context, measure_tensors
from dih20.parity.compare.moved_codes import SITES, RecordingNumerics, moved_codes
from dih20.parity.compare.rounding import SEEN, Roundings
from dih20.parity.compare.router import router_scores
from dih20.parity.dump import DumpReader, Key
from dih20.parity.model import Finding, Measure, Origin
from dih20.parity.oracle import Oracle
from dih20.parity.sites import site_of
from dih20.parity.statistics import describe

Replayed = dict[Key, tuple[Measure, str]]
_CHOICES = ("selection", "expert_ids")


def replay(inputs: DumpReader, outputs: DumpReader, oracle: Oracle, limits: Limits) -> Replayed:
    """Measure each site of `outputs` against what the reference computes from `inputs`.

    With one dump as both, the result is the error that each site of that run adds to what it was
    given: errors of earlier sites are in the inputs, and drop out.
    """
    check_oracle(inputs, oracle)
    out: Replayed = {}
    latest: dict[str, torch.Tensor] = {}  # what ties and weights are judged by: scores, expert ids
    numerics = RecordingNumerics.of(oracle.mode)
    roundings = Roundings(oracle.config, oracle.weights, numerics)

    def seen(step: int, site: str, computed: torch.Tensor) -> None:
        if site.endswith(SEEN):
            roundings.see(site, _given(inputs, step, site, computed))
        if site.endswith((".index_scores", ".expert_ids")):
            latest[site] = computed
        if site.endswith(".ffn.norm"):
            latest[site] = _given(inputs, step, site, computed)
        if not outputs.is_stored(step, site):
            return
        known = site_of(site, outputs.config)
        limit = limits.of(known.kind, None)
        if describe(computed)[0].digest == outputs.describe(step, site)[0].digest:
            out[step, site] = Measure(value=0.0, limit=limit), ""
            return
        prefix = site.rsplit(".", 1)[0]
        norm = latest.get(f"{prefix}.norm") if known.kind == "expert_ids" else None
        scores, ids = f"{prefix}.index_scores", f"{prefix}.expert_ids"
        experts = None
        if known.leaf == "expert_weights" and outputs.is_stored(step, ids):
            experts = (latest[ids], outputs.tensor(step, ids))
        context = Context(
            config=outputs.config,
            positions=outputs.facts.positions[step],
            limit=limit,
            floor=None,
            scores=_forced(inputs, step, scores, latest) if known.kind == "selection" else None,
            router=None if norm is None else _router(norm, prefix, oracle),
            experts=experts,
        )
        stored = outputs.tensor(step, site)
        if stored.shape != computed.shape and known.kind != "selection":
            raise DumpUnusable(
                found=f"{site} is {tuple(stored.shape)} in {outputs.folder}",
                expected=f"{tuple(computed.shape)}, as the reference makes it",
                remedy="correct the shape of the site in the site map, and dump again",
            )
        measure, remark = measure_tensors(known, computed, stored, context)
        if measure.exceeds and not limits.same_arithmetic:
            if known.kind == "selection" and known.layer is not None:
                mask = as_mask(stored, computed.shape[-1])
                differs = (mask != as_mask(computed, computed.shape[-1])).any(dim=-1)
                positions = torch.tensor(context.positions)
                measure = roundings.weigh(measure, known.layer, mask, differs, positions)
            elif site.endswith(SITES):
                measure = moved_codes(measure, site, stored, numerics, oracle.config.swiglu_limit)
        out[step, site] = measure, remark

    oracle.run(inputs, seen, forced=True, numerics=numerics)
    return out


def _given(inputs: DumpReader, step: int, site: str, computed: torch.Tensor) -> torch.Tensor:
    """Give what the site's consumers work with: the dump's tensor where it has one."""
    stored = inputs.is_stored(step, site)
    return inputs.tensor(step, site).to(computed.dtype) if stored else computed


def _router(norm: torch.Tensor, name: str, oracle: Oracle) -> torch.Tensor:
    gate, bias = (oracle.weights[f"{name}.gate.{part}"] for part in ("weight", "bias"))
    return router_scores(norm.float().flatten(0, 1), gate, bias)


def _forced(
    inputs: DumpReader, step: int, site: str, latest: dict[str, torch.Tensor]
) -> torch.Tensor | None:
    """Give the scores that the choice was made by: the dump's where it has them."""
    return inputs.tensor(step, site) if inputs.is_stored(step, site) else latest.get(site)


def check_oracle(dump: DumpReader, oracle: Oracle) -> None:
    """Refuse a reference of another checkpoint than the dump's."""
    if dump.facts.weights != oracle.weights_hash:
        raise DumpUnusable(
            found=f"{dump.folder} was made with weights {dump.facts.weights[:16]}, "
            f"the reference has {oracle.weights_hash[:16]}",
            expected="the same checkpoint",
            remedy="give --checkpoint the folder that the run was made with",
        )
    if dump.config != oracle.config:
        keys = [f.name for f in fields(dump.config) if _differs(f.name, dump, oracle)]
        values = f"{getattr(dump.config, keys[0])}, the reference {getattr(oracle.config, keys[0])}"
        raise DumpUnusable(
            found=f"{dump.folder} was made with {keys[0]} {values}",
            expected="the config of the checkpoint that the reference reads",
            remedy="give --checkpoint a folder with the config.json of the run",
        )


def _differs(name: str, dump: DumpReader, oracle: Oracle) -> bool:
    return bool(getattr(dump.config, name) != getattr(oracle.config, name))


def origins_by_replay(findings: list[Finding], replayed: Replayed) -> list[Finding]:
    """Mark each finding that differs: fresh if its site adds an error to what it was given, rounding
    if that is one which rounding explains.

    A tensor in which both runs agree, and which the reference computes otherwise, means that the
    reference is not the model that ran: then nothing can be said. A choice may come out otherwise
    because B's inputs are a little others than A's: it is held against its site only.
    """
    marked = []
    for finding in findings:
        fresh, remark = replayed.get((finding.step, finding.site), (None, ""))
        if fresh is None:
            marked.append(finding)
            continue
        agree = fresh.exceeds and finding.measure.value == 0.0
        if agree and finding.kind not in _CHOICES:
            raise DumpUnusable(
                found=f"{finding.site}, step {finding.step}: A and B agree, and the reference "
                f"computes something else from the same inputs ({fresh.value:.3g})",
                expected="a reference that reproduces the trusted run",
                remedy="give --checkpoint and mode of A's run, or compare without a checkpoint",
            )
        origin: Origin = "unknown"
        if fresh.explained:
            origin = "rounding"
        elif finding.diverges or agree:
            origin = "fresh" if fresh.exceeds else "inherited"
        remark = finding.remark or remark
        marked.append(replace(finding, fresh=fresh, origin=origin, remark=remark))
    return marked
