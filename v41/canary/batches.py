"""Training data: fixed questions, then facts about people, then questions about those facts.

A row is [question + answer] [facts and filler sentences] [questions about facts, filler]. Every
fact, filler sentence and question about a fact is five tokens long:
    王伟住北京，    今天山很高，    问：王伟住北京
One surname and given name in five is never used in training, so that an answer about such a name
can only come from the context.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from v41.canary.questions import QUESTIONS
from v41.canary.tokenizer import Tokenizer
from v41.canary.vocabulary import (
    ASK,
    CITIES,
    COMMA,
    EOS,
    FILLER,
    GIVEN_NAMES,
    LIVES_IN,
    PAD,
    SURNAMES,
)

UNIT = 5  # tokens of a sentence
_HELD_OUT = 5  # one name in so many


def is_held_out(surname: int, given: int) -> bool:
    """Say whether a name, by its places in the two lists, is kept out of training."""
    return (surname * 7 + given * 3) % _HELD_OUT == 0


def names(*, held_out: bool) -> list[tuple[int, int]]:
    """Give the names of one side, as places in SURNAMES and GIVEN_NAMES."""
    pairs = [(s, g) for s in range(len(SURNAMES)) for g in range(len(GIVEN_NAMES))]
    return [pair for pair in pairs if is_held_out(*pair) == held_out]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How many sentences a row has. facts <= fact_units; asked <= ask_units."""

    length: int
    fact_units: int
    facts: int
    ask_units: int
    asked: int


@dataclass(frozen=True, kw_only=True)
class Batch:
    """tokens int64 (B, L); targets int64 (B, L), the token that follows; the rest fp32 (B, L).

    fixed: 1 where the next token belongs to a fixed question's answer. asked: 1 where it is a fact's.
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    fixed: torch.Tensor
    asked: torch.Tensor


class BatchMaker:
    """Draws batches on one device from one seed."""

    def __init__(self, device: torch.device | str, seed: int, *, held_out: bool = False) -> None:
        tokenizer = Tokenizer.build()
        vocab = tokenizer.vocab
        self._generator = torch.Generator(device).manual_seed(seed)
        self._device = device
        self._queue = torch.zeros(0, dtype=torch.int64, device=device)

        def ids(group: tuple[str, ...]) -> torch.Tensor:
            return torch.tensor([vocab[name] for name in group], device=device)

        pairs = torch.tensor(names(held_out=held_out), device=device)
        self._names = torch.stack((ids(SURNAMES)[pairs[:, 0]], ids(GIVEN_NAMES)[pairs[:, 1]]), 1)
        self._cities, self._filler = ids(CITIES), [ids(group) for group in FILLER]
        self._lives, self._comma, self._ask = (vocab[t] for t in (LIVES_IN, COMMA, ASK))
        prompts = [tokenizer.encode(q.prompt) for q in QUESTIONS]
        answers = [[*tokenizer.encode(q.answer), vocab[EOS]] for q in QUESTIONS]
        self._width = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
        rows = [p + a for p, a in zip(prompts, answers, strict=True)]
        padded = [row + [vocab[PAD]] * (self._width - len(row)) for row in rows]
        self._questions = torch.tensor(padded, device=device)
        self._prompt_lengths = torch.tensor([len(p) for p in prompts], device=device)
        self._row_lengths = torch.tensor([len(row) for row in rows], device=device)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self._generator, device=self._device)

    def _pick(self, choices: torch.Tensor, *shape: int) -> torch.Tensor:
        return choices[(self._random(*shape) * len(choices)).long()]

    def _next_questions(self, rows: int) -> torch.Tensor:
        """Give the next questions; each comes once before any comes again."""
        while len(self._queue) < rows:
            order = self._random(len(self._questions)).argsort()
            self._queue = torch.cat((self._queue, order))
        chosen, self._queue = self._queue[:rows], self._queue[rows:]
        return chosen

    def draw(self, rows: int, layout: Layout) -> Batch:
        """Draw one batch of `rows` rows."""
        sentences, asked = self._sentences(rows, layout)
        choice = self._next_questions(rows)
        length = self._row_lengths[choice]
        # One row in ten has no question, only a few of its last tokens: any place can come first.
        alone = self._random(rows) < 0.1
        start = torch.where(alone, length - (self._random(rows) * UNIT).long(), 0)
        place = torch.arange(layout.length + 1, device=self._device).expand(rows, -1)
        source = place + start.unsqueeze(1)
        in_question = source < length.unsqueeze(1)
        head = self._questions[choice].gather(1, source.clamp_max(self._width - 1))
        flat = source - length.unsqueeze(1)
        tail = sentences.gather(1, flat.clamp(0, sentences.shape[1] - 1))
        tokens = torch.where(in_question, head, tail)
        answers = in_question & (source >= self._prompt_lengths[choice].unsqueeze(1))
        fixed = answers & ~alone.unsqueeze(1)
        inside = (flat >= 0) & (flat < asked.shape[1])
        asks = asked.gather(1, flat.clamp(0, asked.shape[1] - 1)) & inside
        return Batch(
            tokens=tokens[:, :-1].contiguous(),
            targets=tokens[:, 1:].contiguous(),
            fixed=fixed[:, 1:].float(),
            asked=asks[:, 1:].float(),
        )

    def _sentences(self, rows: int, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
        """Give (rows, 5 * units) tokens, and where a fact's answer stands."""
        units = layout.fact_units + layout.ask_units
        comma = torch.full((rows, units), self._comma, device=self._device)
        filler = [self._pick(group, rows, units) for group in self._filler]
        sentences = torch.stack((*filler, comma), dim=-1)
        order = self._random(rows, len(self._names)).topk(layout.facts, dim=1).indices
        known = self._names[order]
        cities = self._pick(self._cities, rows, layout.facts)
        lives = torch.full_like(cities, self._lives)
        facts = torch.stack(
            (known[..., 0], known[..., 1], lives, cities, comma[:, :1].expand_as(lives)), -1
        )
        places = self._random(rows, layout.fact_units).topk(layout.facts, dim=1).indices
        sentences = sentences.scatter(1, places.unsqueeze(-1).expand(-1, -1, UNIT), facts)
        which = (self._random(rows, layout.asked) * layout.facts).long().unsqueeze(-1)
        asking = torch.full((rows, layout.asked, 1), self._ask, device=self._device)
        about = facts.gather(1, which.expand(-1, -1, UNIT))[..., :4]
        questions = torch.cat((asking, about), dim=-1)
        places = self._random(rows, layout.ask_units).topk(layout.asked, dim=1).indices
        places = places.unsqueeze(-1) + layout.fact_units
        sentences = sentences.scatter(1, places.expand(-1, -1, UNIT), questions)
        asked = torch.zeros_like(sentences, dtype=torch.bool)
        asked[..., UNIT - 1] = torch.zeros_like(comma, dtype=torch.bool).scatter(
            1, places.squeeze(-1), True
        )
        return sentences.flatten(1), asked.flatten(1)
