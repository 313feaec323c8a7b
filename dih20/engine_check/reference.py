"""The reference's values in mode sm90: computed once, kept in a file, bound to what made them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dih20.engine_check import cases
from dih20.engine_check.results import read_json, write_json
from dih20.errors import UsageError
from dih20.paths import REPOSITORY
from v41.config import ModelConfig
from v41.numerics import Mode

MODE: Mode = "sm90"
_BOUND = (
    "v41",
    "h20_ops/formats",
    "dih20/engine_check/cases.py",
    "dih20/engine_check/reference.py",
    "dih20/parity/compare/router.py",
)


@dataclass(frozen=True, kw_only=True)
class Followed:
    """What the reference says of one case.

    prompt_logprobs: of tokens 1... of the prompt. router_margins: of the row that says each of them,
    the smallest lead of an expert taken over one left out, of all layers. logprobs: of the golden
    tokens. best: the likeliest token before each golden one; margin: its lead over the second, in nats.
    """

    name: str
    prompt: tuple[int, ...]
    golden: tuple[int, ...]
    prompt_logprobs: tuple[float, ...]
    router_margins: tuple[float, ...]
    logprobs: tuple[float, ...]
    best: tuple[int, ...]
    margin: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ReferenceValues:
    """All of them. dumped: (case, decode steps); only tokens are kept of these."""

    questions: tuple[Followed, ...]
    answers: tuple[str, ...]
    long: tuple[Followed, ...]
    mixed: tuple[Followed, ...]
    dumped: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]


def key() -> str:
    """Give a hash over the reference model, its checkpoint, the number formats and the cases."""
    digest = hashlib.sha256()
    for name in _BOUND:
        path = REPOSITORY / name
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        for file in files:
            if "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(REPOSITORY).as_posix()}\0".encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def prepare(path: Path) -> ReferenceValues:
    """Compute every value and write them."""
    import torch

    from v41.canary.answering import Canary
    from v41.canary.questions import QUESTIONS

    canary = Canary.load(MODE)
    with torch.no_grad():
        follow = Follower(canary).follow
        values = ReferenceValues(
            questions=tuple(follow(case) for case in cases.questions(canary.tokenizer)),
            answers=tuple(question.answer for question in QUESTIONS),
            long=tuple(follow(case) for case in cases.long_prompts(canary.tokenizer)),
            mixed=tuple(follow(case) for case in cases.mixed(canary.tokenizer)),
            dumped=tuple(
                (case.name, case.prompt, case.golden[: steps + 1])
                for case, steps in cases.dumped(canary.tokenizer)
            ),
        )
    write_json(
        path, {"key": key(), "mode": MODE, "torch": torch.__version__, "values": asdict(values)}
    )
    return values


class Follower:
    """Runs the reference along given tokens, one decode step for each."""

    def __init__(self, canary: Any) -> None:
        self.canary = canary

    def follow(self, case: cases.Case) -> Followed:
        import torch

        routers = RouterMargins(self.canary.config, self.canary.weights)
        model = self.canary.model(routers)
        cache = model.new_cache()
        prompt = torch.tensor([case.prompt])
        rows = torch.log_softmax(model.extend(prompt, cache)[0], dim=-1)
        margins = routers.smallest[:-1].tolist()
        of_prompt = rows[:-1].gather(1, prompt[0, 1:, None]).flatten()
        logprobs, best, margin = list[float](), list[int](), list[float]()
        row = rows[-1]
        for step, token in enumerate(case.golden):
            top = row.topk(2)
            best.append(int(top.indices[0]))
            margin.append(float(top.values[0] - top.values[1]))
            logprobs.append(float(row[token]))
            if step + 1 < len(case.golden):
                logits = model.extend(torch.tensor([[token]]), cache)
                row = torch.log_softmax(logits[0, -1], dim=-1)
        return Followed(
            name=case.name,
            prompt=case.prompt,
            golden=case.golden,
            prompt_logprobs=_rounded(of_prompt.tolist()),
            router_margins=_rounded(margins),
            logprobs=_rounded(logprobs),
            best=tuple(best),
            margin=_rounded(margin),
        )


class RouterMargins:
    """A tap that keeps each row's smallest router margin of the layers run since a step began."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Any]) -> None:
        self.config, self.weights = config, weights
        self.smallest: Any = None

    def __call__(self, site: str, tensor: Any) -> Any:
        from dih20.parity.compare.router import router_margins

        name, _, leaf = site.rpartition(".")
        if leaf == "norm" and name.endswith(".ffn"):
            gate, bias = (self.weights[f"{name}.gate.{part}"] for part in ("weight", "bias"))
            margins = router_margins(tensor[0], gate, bias, self.config.num_experts_per_tok)
            first = name == "layers.0.ffn"
            self.smallest = margins if first else margins.minimum(self.smallest)
        return tensor


def _rounded(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(value, 6) for value in values)


def load(path: Path) -> ReferenceValues:
    """Read the values, and refuse those of another reference, checkpoint or set of cases."""
    found = read_json(path)
    if found is None or found.get("key") != key():
        raise UsageError(
            found=f"{path}: {'not there' if found is None else 'values of other sources'}",
            expected="the reference's values for the model, checkpoint and cases here",
            remedy=f"run `python -m dih20.engine_check --prepare --prepared {path}`",
        )
    values = found["values"]
    return ReferenceValues(
        **{name: tuple(_followed(each) for each in values[name]) for name in ("questions", "long", "mixed")},
        answers=tuple(values["answers"]),
        dumped=tuple((n, tuple(p), tuple(g)) for n, p, g in values["dumped"]),
    )  # fmt: skip


def _followed(value: dict[str, Any]) -> Followed:
    plain: dict[str, Any] = {
        name: tuple(each) if isinstance(each, list) else each for name, each in value.items()
    }
    return Followed(**plain)
