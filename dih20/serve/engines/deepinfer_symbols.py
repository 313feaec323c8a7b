"""Every name of DeepInfer that the adapter uses, and a check that a tree has it as expected.

The check reads sources and stub files without importing them, so it runs where the engine cannot.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

VERSION = "0.1.0"


@dataclass(frozen=True)
class Used:
    """One name of a class. parameters: of a function, those we give; None for plain attributes."""

    file: str
    owner: str
    name: str
    parameters: tuple[str, ...] | None = None

    @property
    def shown(self) -> str:
        return f"{self.file}: {self.owner}.{self.name}"


_ENGINE, _ARGS = "engine/llm_engine.py", "engine/arg_utils.py"
_SAMPLING, _STUB = "sampling_params.py", "_C/engine.pyi"
ENGINE_ARGUMENTS = (
    "model", "served_model_name", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
    "chunked_prefill", "gpu_memory_utilization", "expert_parallel_size", "engram_parallel_size",
    "engine_rank", "seed", "disable_log_stats", "stop_preempted_request", "offline_inference",
)  # fmt: skip
SAMPLING_ARGUMENTS = (
    "temperature", "top_p", "top_k", "ignore_eos", "max_tokens", "top_logprobs", "seq_seed",
)  # fmt: skip
OUTPUT_FIELDS = (
    "request_id", "token_id", "finish_reason", "finished", "token_logprobs", "top_logprobs",
    "top_token_ids",
)  # fmt: skip
ADD_ARGUMENTS = (
    "user_id", "request_id", "sampling_params", "prompt_token_ids", "multi_modal_data",
)  # fmt: skip

USED = (
    Used(_ENGINE, "LLMEngine", "from_engine_args", ("engine_args",)),
    Used(_ENGINE, "LLMEngine", "add_request", ADD_ARGUMENTS),
    Used(_ENGINE, "LLMEngine", "abort_request", ("request_id",)),
    Used(_ENGINE, "LLMEngine", "step", ()),
    Used(_ENGINE, "LLMEngine", "flush_inflight_reqs", ()),
    Used(_ENGINE, "LLMEngine", "get_num_unfinished_requests", ()),
    Used(_ENGINE, "LLMEngine", "close", ()),
    Used(_ENGINE, "LLMEngine", "model_config"),
    Used(_ENGINE, "LLMEngine", "scheduler_config"),
    Used(_ENGINE, "LLMEngine", "eos_id"),
    Used(_ENGINE, "LLMEngine", "multi_modal_processor"),
    *(Used(_ARGS, "EngineArgs", name) for name in ENGINE_ARGUMENTS),
    Used(_SAMPLING, "SamplingParams", "__init__", SAMPLING_ARGUMENTS),
    Used("config.py", "ModelConfig", "max_model_len"),
    Used("config.py", "ModelConfig", "get_vocab_size", ()),
    Used("config.py", "SchedulerConfig", "max_num_seqs"),
    *(Used(_STUB, "RequestOutput", f"get_{name}", ("ptr",)) for name in OUTPUT_FIELDS),
)


def complaints(package: Path, names: Sequence[Used] = USED) -> list[str]:
    """Give a line for every name that is not there as expected. package: the folder deepinfer.

    A tree without stub files (some wheels leave them out) is judged by its sources alone.
    """
    found: list[str] = []
    trees: dict[str, ast.Module | None] = {}
    for used in names:
        path = package / used.file
        if used.file not in trees:
            trees[used.file] = _parsed(path)
        tree = trees[used.file]
        if tree is None:
            if path.suffix == ".py":
                found.append(f"{used.shown}: no such file")
            continue
        if wrong := _wrong(tree, used):
            found.append(f"{used.shown}: {wrong}")
    return found


def _parsed(path: Path) -> ast.Module | None:
    return ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else None


def _wrong(tree: ast.Module, used: Used) -> str | None:
    owner = next(
        (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == used.owner), None
    )
    if owner is None:
        return "no such class"
    if used.parameters is None:
        return None if used.name in _attributes(owner) else "no such attribute"
    function = next(
        (n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == used.name), None
    )
    if function is None:
        return "no such method"
    return _signature_wrong(function, used.parameters)


def _attributes(owner: ast.ClassDef) -> set[str]:
    """Give fields of the class body, and what methods assign to self."""
    names = {
        node.target.id
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for node in ast.walk(owner):
        is_stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if is_stored and isinstance(node.value, ast.Name) and node.value.id == "self":  # type: ignore[attr-defined]
            names.add(node.attr)  # type: ignore[attr-defined]
    return names


def _signature_wrong(function: ast.FunctionDef, given: tuple[str, ...]) -> str | None:
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    if not any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list):
        plain = plain[1:]  # self, or the class
    required = {each.arg for each in plain[: len(plain) - len(arguments.defaults)]}
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        plain.append(each)
        required |= set() if default else {each.arg}
    known = {each.arg for each in plain}
    if missing := [name for name in given if name not in known]:
        return f"takes no {', '.join(missing)}"
    if unmet := sorted(required - set(given)):
        return f"needs {', '.join(unmet)} as well"
    return None
