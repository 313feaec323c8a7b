"""What the dumps of all cases together leave out: records of the map's sites, kinds of layers, lengths."""

from __future__ import annotations

from collections.abc import Iterable

from dih20.engine_check.engine_sites import computed_sites
from dih20.parity.model import Coverage, Finding, Phase
from dih20.parity.site_map import SiteMap
from dih20.parity.sites import is_site
from v41.config import ModelConfig

PHASES: tuple[Phase, ...] = ("prefill", "decode")


def wanted_records(site_map: SiteMap, config: ModelConfig) -> set[tuple[str, str]]:
    """Give (site, phase) of every rule of the map, and of what is computed, in each layer that has it."""
    layers = range(config.num_hidden_layers)
    rules = [(rule.site, rule.only) for rule in site_map.sites]
    rules += [(each.site, None) for each in computed_sites(config)]
    return {
        (site, phase)
        for pattern, only in rules
        for site in (pattern.replace("{layer}", str(layer)) for layer in layers)
        for phase in PHASES
        if is_site(site, config) and only in (None, phase)
    }


def not_recorded(wanted: set[tuple[str, str]], findings: Iterable[Finding]) -> list[str]:
    """Give what no case has compared: a rule may fit a method that the engine never calls."""
    found = {(finding.site, finding.phase) for finding in findings}
    return [f"{site} in {phase}" for site, phase in sorted(wanted - found)]


def not_covered(cases: Iterable[Coverage]) -> list[str]:
    """Give the kinds of layers, phases and lengths that no case reaches."""
    cases = list(cases)
    covered = {name for case in cases for name in case.covered}
    return list(
        dict.fromkeys(name for case in cases for name in case.missing if name not in covered)
    )
