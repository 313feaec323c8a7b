"""DeepInfer 0.1.0 as an engine: its own scheduler and batches, driven one step at a time.

The engine batches continuously by itself: requests are added between steps, and each step gives
what the one before sampled (its own scheduling overlaps the two). Not run on a GPU yet; what can be
checked without one is, against the real sources (see deepinfer_symbols).
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from dih20.errors import EngineStartFailed
from dih20.serve.engines import deepinfer_symbols as symbols
from dih20.serve.engines.deepinfer_arguments import (
    DeepInferOptions,
    engine_arguments,
    free_port,
    rank_environment,
    sampling_arguments,
)
from dih20.serve.engines.deepinfer_finding import find_package, log_probs_are_the_models
from dih20.serve.engines.deepinfer_outputs import Outputs
from dih20.serve.engines.interface import (
    Emission,
    EngineContext,
    EngineInfo,
    EngineRequest,
    Lockstep,
    ReportProgress,
    Solo,
)
from dih20.serve.engines.lockstep import GlooLockstep
from dih20.serve.engines.refusal import read_options, refused, why_refused


class DeepInferEngine:
    """See interface.Engine."""

    def __init__(self, context: EngineContext, options: DeepInferOptions) -> None:
        self._context, self._options = context, options
        self._refused: list[Emission] = []
        self._flushed = True  # nothing is in flight
        self._ranks: GlooLockstep | None = None

    def start(self, report: ReportProgress) -> EngineInfo:
        arguments = engine_arguments(self._context, self._options, os.environ)
        os.environ.update(rank_environment(self._context, os.environ, self._agreed_port()))
        report("loading", f"importing deepinfer, GPU {os.environ['CUDA_VISIBLE_DEVICES']}")
        edited = log_probs_are_the_models(find_package())
        load = importlib.import_module
        self._sampling = load("deepinfer.sampling_params").SamplingParams
        self._outputs = Outputs(load("deepinfer._C.engine").RequestOutput)
        arguments_class = load("deepinfer.engine.arg_utils").EngineArgs
        engine_class = load("deepinfer.engine.llm_engine").LLMEngine
        report("loading", f"weights of {arguments['model']}, then warming up")
        try:
            self._engine = engine_class.from_engine_args(arguments_class(**arguments))
        except ValueError as fault:  # its own words for settings that do not fit the GPU
            raise EngineStartFailed(
                found=f"DeepInfer refused to start: {fault}",
                expected="settings that fit the GPU and the checkpoint",
                remedy="correct configs/engine.yaml",
            ) from fault
        self._longest = int(self._engine.model_config.max_model_len)
        self._vocab_size = int(self._engine.model_config.get_vocab_size())
        return EngineInfo(
            name="deepinfer",
            version=symbols.VERSION,
            vocab_size=self._vocab_size,
            max_model_len=self._longest,
            max_num_seqs=int(self._engine.scheduler_config.max_num_seqs),
            end_token_ids=(int(self._engine.eos_id),),
            details={"log-probs": "before temperature" if edited else "AFTER temperature"},
        )

    def _agreed_port(self) -> int:
        """Give a free port, rank 0's with several ranks; their lockstep begins here."""
        port = free_port()
        if self._context.ranks == 1:
            return port
        import torch

        context = self._context
        self._ranks = GlooLockstep(context.rendezvous, rank=context.rank, ranks=context.ranks)
        return int(self._ranks.gather(torch.tensor([port]))[0])

    def lockstep(self) -> Lockstep:
        return self._ranks or Solo()

    def add(self, request: EngineRequest) -> None:
        wrong = why_refused(request, self._vocab_size, self._longest)
        if wrong is None:
            wrong = self._hand_over(request)
        if wrong:
            self._refused.append(refused(request.id, wrong))

    def _hand_over(self, request: EngineRequest) -> str | None:
        import numpy

        prompt = numpy.asarray(request.prompt, dtype=numpy.int32)
        no_pictures: dict[str, list[Any]] = {"image_bytes": [], "image_sizes": []}
        try:
            sequence = self._engine.add_request(
                user_id="0",
                request_id=str(request.id),
                sampling_params=self._sampling(**sampling_arguments(request)),
                prompt_token_ids=prompt,
                multi_modal_data=no_pictures if self._engine.multi_modal_processor else None,
            )
        except ValueError as fault:
            return f"the engine refused the request: {fault}"
        if sequence is None:
            return "the engine dropped the request: a token it does not know"
        self._outputs.begin(request)
        return None

    def cancel(self, id: int) -> None:
        self._refused = [each for each in self._refused if each.id != id]
        if self._outputs.forget(id):
            self._engine.abort_request(str(id))

    def has_work(self) -> bool:
        return bool(self._refused) or not self._flushed or self._is_unfinished()

    def _is_unfinished(self) -> bool:
        return int(self._engine.get_num_unfinished_requests()) > 0

    def step(self) -> list[Emission]:
        """Step while any rank has requests, then fetch what is still in flight."""
        emissions, self._refused = self._refused, []
        if self.lockstep().agree(self._is_unfinished(), 0).work:
            addresses, self._flushed = self._engine.step(), False
        elif not self._flushed:
            addresses, self._flushed = self._engine.flush_inflight_reqs(), True
        else:
            return emissions
        said, stopped = self._outputs.emissions(int(address) for address in addresses)
        if stopped:
            self._engine.abort_request([str(id) for id in stopped])
        return emissions + said

    def memory(self) -> tuple[int, int] | None:
        import torch

        free, total = torch.cuda.mem_get_info()
        return total - free, total

    def drain(self) -> None:
        """Nothing to do: what is waiting is still answered."""

    def close(self) -> None:
        self._engine.close()
        if self._ranks:
            self._ranks.close()


def make_engine(context: EngineContext) -> DeepInferEngine:
    """Check the options and make the engine; nothing is imported before start()."""
    return DeepInferEngine(context, read_options(DeepInferOptions, context))
