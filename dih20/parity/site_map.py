"""Site maps: which tensor of a module tree is which site, as YAML in maps/.

engine: deepinfer
step:                                  # one call of this is one forward pass
  at: model
  tokens: arg.input_metadata.input_ids
  positions: arg.input_metadata.positions
  prefill: arg.input_metadata.is_prompt
sites:
  - site: layers.{layer}.attn.context
    at: model.layers.{layer}.self_attn
    call: _prefill_attention           # a method; forward if left out
    take: result                       # result, result.N, arg.NAME, and attributes of these
    shape: tokens                      # (tokens, ...) becomes (sequences, rows, ...)
    shard: {merge: concat, dim: 2}     # what one rank of a tensor-parallel run holds
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from dih20.errors import ConfigError
from dih20.parity.model import Merge
from dih20.paths import shown

Shape = Literal["as-is", "tokens"]
MAPS = Path(__file__).parent / "maps"
_SITE_KEYS = {"site", "at", "call", "take", "shape", "shard", "only"}
_STEP_KEYS = {"at", "call", "tokens", "positions", "prefill"}


@dataclass(frozen=True, kw_only=True)
class SiteRule:
    """Take `take` of each call of `call` of the module `at` as `site`.

    only: "prefill" or "decode" when the engine has another call for the other phase.
    """

    site: str
    at: str
    call: str = "forward"
    take: str = "result"
    shape: Shape = "as-is"
    merge: Merge = "replicated"
    dim: int = 0
    only: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepRule:
    """One call of `call` of the module `at` is one step."""

    at: str
    tokens: str
    positions: str
    prefill: str
    call: str = "forward"


@dataclass(frozen=True, kw_only=True)
class SiteMap:
    engine: str
    sites: tuple[SiteRule, ...]
    step: StepRule | None = None


def load_map(name: str) -> SiteMap:
    """Read a map by its name in maps/, or by its path; unknown keys are errors."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else MAPS / f"{name}.yaml"
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as missing:
        raise ConfigError(
            found=f"no site map {name!r}",
            expected=f"a path, or one of {', '.join(sorted(p.stem for p in MAPS.glob('*.yaml')))}",
            remedy="correct the name",
        ) from missing
    except yaml.YAMLError as broken:
        raise _wrong(path, f"not YAML: {broken}") from broken
    return _parse(path, raw)


def _parse(path: Path, raw: Any) -> SiteMap:
    if not isinstance(raw, dict) or not isinstance(raw.get("sites"), list):
        raise _wrong(path, "no list `sites`")
    _known(path, raw, {"engine", "step", "sites"}, "")
    rules = [_site(path, entry, index) for index, entry in enumerate(raw["sites"])]
    step = raw.get("step")
    if step is not None:
        _known(path, step, _STEP_KEYS, "step.")
    try:
        return SiteMap(
            engine=str(raw["engine"]), sites=tuple(rules), step=StepRule(**step) if step else None
        )
    except (KeyError, TypeError) as missing:
        raise _wrong(path, f"{missing}") from missing


def _site(path: Path, entry: Any, index: int) -> SiteRule:
    where = f"sites[{index}]."
    _known(path, entry, _SITE_KEYS, where)
    shard = entry.get("shard", {})
    _known(path, shard, {"merge", "dim"}, f"{where}shard.")
    _one_of(path, f"{where}shape", entry.get("shape", "as-is"), ("as-is", "tokens"))
    _one_of(
        path,
        f"{where}shard.merge",
        shard.get("merge", "replicated"),
        ("replicated", "concat", "sum"),
    )
    _one_of(path, f"{where}only", entry.get("only"), (None, "prefill", "decode"))
    if not {"site", "at"} <= set(entry):
        raise _wrong(path, f"{where} needs `site` and `at`")
    plain = {key: value for key, value in entry.items() if key != "shard"}
    return SiteRule(
        **plain, merge=cast(Merge, shard.get("merge", "replicated")), dim=int(shard.get("dim", 0))
    )


def _known(path: Path, entry: Any, keys: set[str], where: str) -> None:
    if not isinstance(entry, Mapping):
        raise _wrong(path, f"{where.rstrip('.')} is a {type(entry).__name__}")
    for key in entry:
        if key not in keys:
            raise _wrong(path, f"unknown key {where}{key}; known: {', '.join(sorted(keys))}")


def _one_of(path: Path, where: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise _wrong(path, f"{where} is {value!r}; allowed: {', '.join(map(str, allowed))}")


def _wrong(path: Path, why: str) -> ConfigError:
    return ConfigError(
        found=f"{shown(path)}: {why}",
        expected="a site map as dih20/parity/site_map.py describes it",
        remedy="correct the map, then run again",
    )
