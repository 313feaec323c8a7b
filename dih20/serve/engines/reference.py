"""The reference model as an engine: the canary, or any V4.1 checkpoint that fits in memory.

A step is one pass of one sequence: the next token of one that decodes, or the next chunk of a
prompt; sequences take turns, so a long prompt holds the others up for one chunk at a time. Rows are
not batched, because a batch of another size gives other bits: this way an answer depends on nobody
else's request, and it is that of v41 to the bit. With several ranks the experts are spread over
them, and each rank runs one pass, or pads, in each step.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated, Literal

import torch
from pydantic import Field

from dih20.serve.engines.expert_parallel import ExpertParallelReference
from dih20.serve.engines.interface import (
    Emission,
    EngineContext,
    EngineInfo,
    EngineRequest,
    Lockstep,
    ReportProgress,
    Solo,
)
from dih20.serve.engines.lockstep import DEADLINE_S, GlooLockstep
from dih20.serve.engines.reference_loading import load
from dih20.serve.engines.refusal import read_options, refused, why_refused
from dih20.serve.engines.running import Running
from dih20.serve.settings import Part
from v41.canary import FOLDER


class ReferenceOptions(Part):
    """Keys of engine_options for this engine."""

    mode: Literal["exact", "trained", "sm90"] = "trained"
    device: str = "cpu"
    threads: Annotated[int, Field(ge=1, le=256)] = 1  # two on busy cores are slower than one
    max_num_seqs: Annotated[int, Field(ge=1, le=1024)] = 16
    prefill_tokens: Annotated[int, Field(ge=1)] = 64  # of one chunk
    rank_timeout_s: Annotated[float, Field(gt=0)] = DEADLINE_S  # for a rank to come to an exchange


class ReferenceEngine:
    """See interface.Engine."""

    def __init__(self, context: EngineContext, options: ReferenceOptions) -> None:
        self._context, self._options = context, options
        self._waiting: deque[Running] = deque()
        self._running: deque[Running] = deque()
        self._refused: list[Emission] = []
        self._gloo: GlooLockstep | None = None

    def start(self, report: ReportProgress) -> EngineInfo:
        options, context = self._options, self._context
        torch.set_num_threads(options.threads)
        report("loading", f"rank {context.rank} of {context.ranks}, torch {torch.__version__}", 0.0)
        if context.ranks > 1:
            self._gloo = GlooLockstep(
                context.rendezvous,
                rank=context.rank,
                ranks=context.ranks,
                deadline_s=options.rank_timeout_s,
            )
        folder = context.settings.model or FOLDER
        loaded = load(folder, options.mode, options.device, self._gloo, report)
        self._model, self._ends = loaded.model, loaded.end_token_ids
        self._longest = min(context.settings.limits.max_model_len or loaded.longest, loaded.longest)
        if self._gloo:
            report("warming", "waiting for the other ranks to load", None)
            self._gloo.wait_for_loaded()
        return EngineInfo(
            name="reference",
            version=f"v41, torch {torch.__version__}",
            vocab_size=self._model.config.vocab_size,
            max_model_len=self._longest,
            max_num_seqs=options.max_num_seqs,
            end_token_ids=self._ends,
            details={
                "numerics": options.mode,
                "device": options.device,
                "experts": self._experts(),
            },
        )

    def _experts(self) -> str:
        count = self._model.config.n_routed_experts
        held = getattr(self._model, "held", range(count))
        return f"{held.start} to {held.stop - 1} of {count}"

    def lockstep(self) -> Lockstep:
        return self._gloo or Solo()

    def add(self, request: EngineRequest) -> None:
        wrong = why_refused(request, self._model.config.vocab_size, self._longest)
        if wrong:
            self._refused.append(refused(request.id, wrong))
        else:
            self._waiting.append(Running(request, self._ends, self._longest))

    def cancel(self, id: int) -> None:
        self._waiting = deque(each for each in self._waiting if each.request.id != id)
        self._running = deque(each for each in self._running if each.request.id != id)
        self._refused = [each for each in self._refused if each.id != id]

    def has_work(self) -> bool:
        return bool(self._running or self._waiting or self._refused)

    def step(self) -> list[Emission]:
        emissions, self._refused = self._refused, []
        while self._waiting and len(self._running) < self._options.max_num_seqs:
            self._running.append(self._waiting.popleft())
        with torch.inference_mode():
            if self._running:
                emissions += self._pass(self._running.popleft())
            elif isinstance(self._model, ExpertParallelReference):
                self._model.pad()
        return emissions

    def _pass(self, running: Running) -> list[Emission]:
        tokens = running.next_tokens(self._options.prefill_tokens)
        if isinstance(self._model, ExpertParallelReference):
            self._model.join(len(tokens))
        cache = running.cache or self._model.new_cache()
        rows = torch.tensor([tokens], device=self._options.device)
        logits = self._model.extend(rows, cache)[0, -1]
        emission = running.took(len(tokens), cache, logits)
        if emission is None or emission.finish is None:
            self._running.append(running)
        return [emission] if emission else []

    def memory(self) -> tuple[int, int] | None:
        if not self._options.device.startswith("cuda"):
            return None
        free, total = torch.cuda.mem_get_info(self._options.device)
        return total - free, total

    def drain(self) -> None:
        """Nothing to do: what is waiting is still answered."""

    def close(self) -> None:
        self._waiting.clear()
        self._running.clear()
        if self._gloo:
            self._gloo.close()


def make_engine(context: EngineContext) -> ReferenceEngine:
    """Check the options and make the engine; nothing is loaded before start()."""
    return ReferenceEngine(context, read_options(ReferenceOptions, context))
