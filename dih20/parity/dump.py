"""Write and read dumps: a folder with one safetensors file per step and rank, and an index.

    with DumpWriter(folder, facts) as dump:
        dump.begin_step("prefill", tokens=[[5, 9, 2]], positions=[0, 1, 2])
        dump.add("layers.0.attn.q", tensor)
        ...
    reader = DumpReader(folder)
    reader.tensor(0, "layers.0.attn.q")

A file holds each tensor under its site's name and its sketch under "NAME#sketch"; a statistics-only
dump has the sketches alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType

import torch

from dih20.errors import DumpUnusable
from dih20.parity.dump_index import read_index, tensor_path, write_index
from dih20.parity.merging import merge_ranks
from dih20.parity.model import Phase, RunFacts, Shard, Statistics, TensorRecord
from dih20.parity.sites import site_of
from dih20.parity.statistics import describe
from dih20.parity.tensor_file import TensorFile, TensorFileWriter
from v41.config import ModelConfig

Key = tuple[int, str]  # step, site
_SKETCH = "#sketch"


class DumpWriter:
    """Write one rank's part of a dump; memory holds one tensor at a time."""

    def __init__(
        self, folder: Path, facts: RunFacts, *, rank: int = 0, statistics_only: bool = False
    ) -> None:
        if any(folder.glob(f"*.rank-{rank}.*")):
            raise DumpUnusable(
                found=f"{folder} already holds a dump of rank {rank}",
                expected="a folder without one: a dump is never written over another",
                remedy="remove the folder, or give another one",
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.rank, self.statistics_only = folder, rank, statistics_only
        self._facts = replace(facts, tokens=(), positions=())
        self._config = ModelConfig.from_hf(dict(facts.config))
        self._records: list[TensorRecord] = []
        self._seen: set[str] = set()
        self._file: TensorFileWriter | None = None
        self._phase: Phase = "prefill"

    def begin_step(
        self, phase: Phase, tokens: Sequence[Sequence[int]], positions: Sequence[int]
    ) -> None:
        """Start a forward pass over these tokens, [sequence][row], at these positions."""
        self._end_step()
        facts, self._phase = self._facts, phase
        step = len(facts.tokens)
        self._file = TensorFileWriter(tensor_path(self.folder, step, self.rank))
        self._facts = replace(
            facts,
            tokens=(*facts.tokens, tuple(tuple(row) for row in tokens)),
            positions=(*facts.positions, tuple(positions)),
        )
        self._seen = set()

    def add(self, site: str, tensor: torch.Tensor, shard: Shard | None = None) -> None:
        """Keep a tensor of the current step."""
        assert self._file is not None, f"{site}: begin_step comes first"
        if site in self._seen:
            raise DumpUnusable(
                found=f"{site} was produced twice in step {len(self._facts.tokens) - 1}",
                expected="one tensor per site and step",
                remedy="begin a step for every forward pass, or correct the site map",
            )
        self._seen.add(site)
        statistics, sketch = describe(tensor)
        layer = site_of(site, self._config).layer
        self._records.append(
            TensorRecord(
                site=site,
                layer=layer,
                layer_kind="" if layer is None else self._config.layer(layer).name,
                phase=self._phase,
                step=len(self._facts.tokens) - 1,
                rank=self.rank,
                shape=tuple(tensor.shape),
                stride=tuple(tensor.stride()),
                storage_offset=tensor.storage_offset(),
                dtype=str(tensor.dtype).removeprefix("torch."),
                stored=not self.statistics_only,
                statistics=statistics,
                shard=shard or Shard(world=self._facts.world),
            )
        )
        self._file.add(site + _SKETCH, sketch)
        if not self.statistics_only:
            self._file.add(site, tensor)

    def close(self) -> None:
        """Complete the last step and write the index."""
        self._end_step()
        write_index(self.folder, self.rank, self._facts, self._records)

    def _end_step(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif self._file is not None:
            self._file.abandon()


class DumpReader:
    """A complete dump; ranks are merged to whole tensors when asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ranks = sorted(folder.glob("index.rank-*.json"))
        if not ranks:
            what = "no index" if folder.is_dir() else "no such folder"
            raise DumpUnusable(
                found=f"{folder}: {what}",
                expected="a dump folder with index.rank-0.json, which is written when a run ends",
                remedy="give the folder of a completed `./inv parity dump`",
            )
        indexes = [read_index(path) for path in ranks]
        self.facts = indexes[0][0]
        if len(indexes) != self.facts.world:
            raise DumpUnusable(
                found=f"{folder}: the indexes of {len(indexes)} ranks",
                expected=f"those of all {self.facts.world} ranks of the run",
                remedy="copy every rank's files into the folder",
            )
        self.config = ModelConfig.from_hf(dict(self.facts.config))
        self._records: dict[Key, list[TensorRecord]] = {}
        for _, records in indexes:
            for record in records:
                self._records.setdefault((record.step, record.site), []).append(record)
        self._files: dict[tuple[int, int], TensorFile] = {}
        for record in (r for group in self._records.values() for r in group):
            self._check(record)

    def _file(self, step: int, rank: int) -> TensorFile:
        key = (step, rank)
        if key not in self._files:
            self._files[key] = TensorFile(tensor_path(self.folder, step, rank))
        return self._files[key]

    def _check(self, record: TensorRecord) -> None:
        file = self._file(record.step, record.rank)
        entry = file.entries.get(record.site)
        stored = tuple(entry["shape"]) if entry else None
        if record.site + _SKETCH not in file.entries or (record.stored and stored != record.shape):
            raise DumpUnusable(
                found=f"{file.path}: {record.site} is {stored or 'missing'}",
                expected=f"{record.shape}, as the index says",
                remedy="copy index and tensor files of the same dump",
            )

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """Every (step, site), in causal order."""
        order = {site: site_of(site, self.config).order for _, site in self._records}
        return tuple(sorted(self._records, key=lambda key: (key[0], order[key[1]], key[1])))

    def __contains__(self, key: Key) -> bool:
        return key in self._records

    def record(self, step: int, site: str) -> TensorRecord:
        """Give the first rank's record."""
        return self._records[step, site][0]

    def records(self, step: int, site: str) -> list[TensorRecord]:
        """Give every rank's record."""
        return self._records[step, site]

    def is_stored(self, step: int, site: str) -> bool:
        """Say whether the tensor itself is in the dump, not only its statistics."""
        return (step, site) in self._records and self.record(step, site).stored

    def is_whole(self, step: int, site: str) -> bool:
        """Say whether one rank's tensor is the whole one."""
        return len(self._records[step, site]) == 1 or (
            self.record(step, site).shard.merge == "replicated"
        )

    def shape(self, step: int, site: str) -> tuple[int, ...]:
        """Give the shape of the whole tensor without reading it."""
        shape, shard = list(self.record(step, site).shape), self.record(step, site).shard
        if shard.merge == "concat":
            shape[shard.dim] = sum(r.shape[shard.dim] for r in self._records[step, site])
        return tuple(shape)

    def tensor(self, step: int, site: str) -> torch.Tensor:
        """Read the whole tensor."""
        records = self._records[step, site]
        if not records[0].stored:
            raise DumpUnusable(
                found=f"{self.folder}: {site} of step {step} is in statistics only",
                expected="the tensor itself",
                remedy="dump the run again without --statistics-only",
            )
        if self.is_whole(step, site):
            return self._file(step, records[0].rank).read(site)
        parts = [self._file(step, record.rank).read(site) for record in records]
        return merge_ranks(parts, records)

    def pieces(self, step: int, site: str, max_elements: int) -> Iterator[torch.Tensor]:
        """Read the whole tensor's elements in order, flat, a few at a time."""
        if self.is_whole(step, site):
            yield from self._file(step, self.record(step, site).rank).pieces(site, max_elements)
        else:
            yield from self.tensor(step, site).flatten().split(max_elements)

    def describe(self, step: int, site: str) -> tuple[Statistics, torch.Tensor]:
        """Give statistics and sketch of the whole tensor; only sharded ones are read for it."""
        if not self.is_whole(step, site):
            return describe(self.tensor(step, site))
        record = self.record(step, site)
        return record.statistics, self._file(step, record.rank).read(site + _SKETCH)
