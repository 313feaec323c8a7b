"""Separate fresh error from inherited error, from the inputs of a site alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dih20.parity.dump import Key
from dih20.parity.model import Finding
from dih20.parity.sites import KEPT_OVER_STEPS, inputs_of, site_of
from v41.config import ModelConfig


def origins_by_inputs(findings: list[Finding], config: ModelConfig) -> list[Finding]:
    """Mark each finding that differs: fresh if everything it is made of agrees, else inherited.

    An input that was not dumped is replaced by its own inputs. Without a replay this cannot see a
    second fault behind the first.
    """
    differs = {(f.step, f.site): f.diverges for f in findings}
    marked = []
    for finding in findings:
        if not finding.diverges:
            marked.append(finding)
            continue
        inherited = any(
            differs[key] for key in _dumped_inputs(finding.step, finding.site, differs, config)
        )
        marked.append(replace(finding, origin="inherited" if inherited else "fresh"))
    return marked


def _dumped_inputs(
    step: int, site: str, dumped: dict[Key, bool], config: ModelConfig
) -> Iterator[Key]:
    is_latent = site_of(site, config).leaf == "latent"
    for name in inputs_of(site, config):
        leaf = site_of(name, config).leaf
        first = 0 if leaf in KEPT_OVER_STEPS or is_latent else step
        for earlier in range(first, step + 1):
            if (earlier, name) in dumped:
                yield earlier, name
            elif earlier == step:
                yield from _dumped_inputs(earlier, name, dumped, config)
