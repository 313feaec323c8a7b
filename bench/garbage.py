"""What each suspected fault of an SM90 port does to the canary's answers: python bench/garbage.py [--quick].

Every fault is put into all layers that it can act in, of the reference model on the committed
canary; the fixed questions are asked one by one, as a first port would be. Writes
docs/evidence/garbage-symptoms.json, from which docs/why-it-printed-garbage.md has its table.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from dih20.parity.sabotage import attention_faults as attention
from dih20.parity.sabotage import cache_faults as cache
from dih20.parity.sabotage import rotation_faults as rotations
from dih20.parity.sabotage import weight_faults as weights
from dih20.parity.sabotage.base import Base
from dih20.parity.sabotage.canary import canary_base
from dih20.parity.sabotage.fault import Injector
from v41.canary.answering import Canary
from v41.canary.questions import QUESTIONS
from v41.model import Reference
from v41.tap import no_tap

EVIDENCE = Path(__file__).parent.parent / "docs/evidence/garbage-symptoms.json"
GUIDE = Path(__file__).parent.parent / "docs/why-it-printed-garbage.md"
_MARKS = ("<!-- symptoms -->\n", "<!-- end of symptoms -->")
COLD = 1e-5  # the temperature that the engine puts in place of 0
_LONGEST = 10


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """A fault of the list H1-H8, and what puts it into one layer."""

    hypothesis: str
    fault: str
    injectors: tuple[Injector, ...]


SYMPTOMS = (
    Symptom(hypothesis="-", fault="none", injectors=()),
    Symptom(
        hypothesis="H1",
        fault="prefill keeps entries below the query's row",
        injectors=(attention.ALL_KEYS_MASKED,),
    ),
    Symptom(hypothesis="H2", fault="decode takes pages for dense", injectors=(cache.PAGE_STRIDE,)),
    Symptom(hypothesis="H3", fault="288-byte records read as 528", injectors=(cache.WIDTH,)),
    Symptom(hypothesis="H4", fault="sink missing", injectors=(attention.SINK_MISSING,)),
    Symptom(hypothesis="H4", fault="sink in base 2", injectors=(attention.SINK_BASE_2,)),
    Symptom(
        hypothesis="H5",
        fault="Engram scales packed, read as fp32",
        injectors=(weights.ENGRAM_VIEW,),
    ),
    Symptom(
        hypothesis="H5",
        fault="a linear's scales packed, read as fp32",
        injectors=(weights.LINEAR_PACKED_FP32,),
    ),
    Symptom(hypothesis="H7", fault="w1 and w3 exchanged", injectors=(weights.ROUTED_SWAPPED,)),
    Symptom(
        hypothesis="H7", fault="expert scales transposed", injectors=(weights.EXPERT_TRANSPOSED,)
    ),
    Symptom(
        hypothesis="H8", fault="rotation back left out", injectors=(rotations.INVERSE_MISSING,)
    ),
    Symptom(hypothesis="H8", fault="rotation back twice", injectors=(rotations.INVERSE_TWICE,)),
)


class Chosen(Random):
    """A generator that draws one layer, and the first of anything else: every phase, block 1."""

    def __init__(self, layer: int) -> None:
        super().__init__(0)
        self.layer = layer

    def choice(self, seq: Any) -> Any:
        return self.layer if self.layer in seq else seq[0]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return self.layer

    def randint(self, a: int, b: int) -> int:
        return a


def broken_everywhere(base: Base, injectors: Sequence[Injector]) -> Callable[[], Reference]:
    """Give a builder of the model with a fault in every layer that it can act in."""
    sites: dict[int, Any] = {}
    changed: dict[str, torch.Tensor] = {}
    for inject in injectors:
        for layer in range(base.oracle.config.num_hidden_layers):
            fault = inject(base, Chosen(layer))
            if f"layers.{layer}." not in fault.site:
                continue  # not a kind of layer that the fault acts in
            model = fault.build(no_tap)
            healthy = base.oracle.weights
            changed |= {k: v for k, v in model.weights.items() if v is not healthy[k]}
            if type(model._attention[layer]) is not type(base.reference(no_tap)._attention[layer]):
                sites[layer] = model._attention[layer]

    def build() -> Reference:
        oracle = base.oracle
        model = Reference(
            oracle.config,
            {**oracle.weights, **changed},
            numerics=oracle.numerics,
            compressed_ids=oracle.compressed_ids,
            tap=no_tap,
        )
        for layer, site in sites.items():
            model._attention[layer] = site
        return model

    return build


def ask(canary: Canary, build: Callable[[], Reference], count: int) -> dict[str, Any]:
    """Ask questions one by one; give what came, and the log-probs that an engine would report."""
    end = canary.tokenizer.vocab["<｜end▁of▁sentence｜>"]
    texts, right, first_right, warm, cold, not_finite = [], 0, 0, [], [], 0
    for question in QUESTIONS[:count]:
        model = build()
        kept, ids = model.new_cache(), canary.tokenizer.encode(question.prompt)
        tokens, given = torch.tensor([ids]), list[int]()
        for step in range(_LONGEST):
            logits = model.extend(tokens, kept)[:, -1]
            not_finite += int(not logits.isfinite().all())
            best = int(logits.nan_to_num(-1e30).argmax())
            warm.append(float(torch.log_softmax(logits, -1)[0, best]))
            cold.append(float(torch.log_softmax(logits / COLD, -1)[0, best]))
            expected = canary.tokenizer.encode(question.answer)
            first_right += step == 0 and best == expected[0]
            if best == end:
                break
            given.append(best)
            tokens = torch.tensor([[best]])
        text = canary.tokenizer.decode(given)
        right += text == question.answer
        texts.append({"asked": question.question, "expected": question.answer, "got": text})
    finite = [value for value in warm if value == value]
    return {
        "right": right,
        "first_token_right": first_right,
        "asked": count,
        "log_prob_mean": round(sum(finite) / len(finite), 4) if finite else None,
        "log_prob_mean_at_temperature_1e-5": round(sum(v for v in cold if v == v) / len(cold), 4),
        "steps_not_finite": not_finite,
        "steps": len(warm),
        "samples": texts[:3],
    }


def with_table(text: str, evidence: dict[str, Any]) -> str:
    """Give the guide with its table as the evidence has it."""
    rows = [
        "| fault, in every layer | | right | first token right | steps not finite | mean log-prob | at 1e-5 | asked for the capital of China |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in evidence["symptoms"]:
        asked, mean = each["asked"], each["log_prob_mean"]
        got = re.sub(r"(<[^>]*>)+", "...", each["samples"][0]["got"])
        rows.append(
            f"| {each['fault']} | {each['hypothesis']} | {each['right']} of {asked} | "
            f"{each['first_token_right']} of {asked} | {each['steps_not_finite']} of {each['steps']} | "
            f"{'none' if mean is None else f'{mean:.2f}'} | "
            f"{each['log_prob_mean_at_temperature_1e-5']:.2f} | {got} |"
        )
    head, rest = text.split(_MARKS[0])
    return head + _MARKS[0] + "\n".join(rows) + "\n" + _MARKS[1] + rest.split(_MARKS[1])[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="4 questions; prints, writes nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    base, canary = canary_base(), Canary.load("trained")
    count = 4 if given.quick else len(QUESTIONS)
    found = []
    with torch.no_grad():
        for symptom in SYMPTOMS:
            started = time.monotonic()
            row = ask(canary, broken_everywhere(base, symptom.injectors), count)
            found.append({"hypothesis": symptom.hypothesis, "fault": symptom.fault, **row})
            seconds = time.monotonic() - started
            print(f"{symptom.fault:45} {row['right']:2}/{count}  {seconds:.1f} s", file=sys.stderr)
    evidence = {
        "what": "the reference model on the committed canary, one fault in every layer; no GPU",
        "mode": "trained",
        "torch": torch.__version__,
        "symptoms": found,
    }
    text = json.dumps(evidence, ensure_ascii=False, indent=1) + "\n"
    if given.quick:
        print(text)
    else:
        EVIDENCE.write_text(text)
        GUIDE.write_text(with_table(GUIDE.read_text(), evidence))


if __name__ == "__main__":
    main()
