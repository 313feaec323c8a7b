"""Settings of the engine: what DeepInfer is given in the container."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from dih20.config.reading import Section

_SET_BY_US = {
    "CPATH": "the image points it at the header overlay",
    "CUDA_VISIBLE_DEVICES": "deploy sets it from the host's gpus",
    "NVIDIA_VISIBLE_DEVICES": "deploy asks for the GPUs through the engine's API",
    "DEEPINFER_ACCELERATOR": "the image sets it to nvidia",
}


class EngineConfig(Section):
    """What the engine gets. configs/engine.yaml is the manual of these keys."""

    expert_parallel_size: Annotated[int, Field(ge=1, le=64)] = 8
    max_model_len: Annotated[int, Field(ge=1024, le=1048576)] = 16384
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] = 256
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    chunked_prefill: bool = False
    gpu_memory_utilization: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.9
    environment: dict[str, str] = Field(default_factory=dict)

    @field_validator("environment")
    @classmethod
    def _sane_environment(cls, environment: dict[str, str]) -> dict[str, str]:
        for name, value in environment.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{name!r} cannot be the name of an environment variable")
            if name in _SET_BY_US:
                raise ValueError(f"{name} cannot be set here: {_SET_BY_US[name]}")
            if "LIBRARY_PATH" in name and "stubs" in value:
                raise ValueError(
                    f"{name} holds a stubs folder, whose libcuda must never be found at run time"
                )
        return environment

    @model_validator(mode="after")
    def _batch_holds_a_prompt(self) -> EngineConfig:
        batch = self.max_num_batched_tokens
        if batch is not None and batch < self.max_model_len and not self.chunked_prefill:
            raise ValueError(
                f"max_num_batched_tokens {batch} is below max_model_len {self.max_model_len}; "
                "the engine allows that only with chunked_prefill: true"
            )
        return self

    @property
    def batched_tokens(self) -> int:
        """Give the tokens of one batch: as set, else one whole prompt."""
        return self.max_num_batched_tokens or self.max_model_len
