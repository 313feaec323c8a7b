"""Wrong ways to rotate: half-split pairs, the other layer kind's base, shifted positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from dih20.parity.diagnosis.hypothesis import Hypothesis
from dih20.parity.diagnosis.inputs import Inputs
from v41.rope import Rope

Turn = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def half_split(rope: Rope, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotate with channel i paired with i + n/2, as a half-split (NeoX) kernel does.

    Interleaving the halves, rotating in pairs and undoing it is the same computation.
    """
    dim = rope.rotary_dim
    rest, rotary = x[..., :-dim], x[..., -dim:]
    low, high = rotary.chunk(2, dim=-1)
    paired = torch.stack((low, high), dim=-1).flatten(-2)
    turned = rope.rotate(paired, positions)
    return torch.cat((rest, turned[..., 0::2], turned[..., 1::2]), dim=-1)


def rotation_hypotheses(
    inputs: Inputs, finish: Callable[[Turn], torch.Tensor]
) -> Iterator[Hypothesis]:
    """Give the wrong rotations of a query, key or entry.

    finish: computes the site's tensor with a given way to turn.
    """
    rope, other = inputs.rope, inputs.other_rope
    yield Hypothesis(
        cause="rope-half-split",
        detail="pairs are (i, i + n/2)",
        predict=lambda: finish(lambda x, positions: half_split(rope, x, positions)),
    )
    yield Hypothesis(
        cause="rope-base",
        detail="the other layer kind's frequencies",
        predict=lambda: finish(other.rotate),
    )


def entry_position_hypotheses(
    inputs: Inputs, finish: Callable[[Turn], torch.Tensor]
) -> Iterator[Hypothesis]:
    """Give wrong positions of compressed entries; positions come in as j * ratio."""
    rope, ratio = inputs.rope, inputs.kind.ratio

    def moved(how: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], torch.Tensor]:
        return lambda: finish(lambda x, positions: rope.rotate(x, how(positions)))

    wrong: list[tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = [
        ("turned by j + 1 groups", lambda p: p + ratio),
        ("not turned at all", torch.zeros_like),
        ("counted from the step's first entry", lambda p: p - p[:1]),
    ]
    if ratio > 1:
        wrong.insert(0, ("turned by j", lambda p: p // ratio))
        wrong.insert(1, ("turned by the group's last token", lambda p: p + ratio - 1))
    for detail, how in wrong:
        yield Hypothesis(cause="rope-compressed-position", detail=detail, predict=moved(how))


def output_hypotheses(inputs: Inputs) -> Iterator[Hypothesis]:
    """Give the wrong ways to take the query's rotation out of the context."""
    rope, positions = inputs.rope, inputs.positions
    context = inputs.here("context")
    bf16 = inputs.numerics.bf16

    def back(x: torch.Tensor) -> torch.Tensor:
        return rope.rotate(x, positions, inverse=True)

    yield Hypothesis(
        cause="inverse-rope-missing", detail="equal to the context", predict=lambda: context
    )
    yield Hypothesis(
        cause="inverse-rope-twice",
        detail="turned back twice",
        predict=lambda: bf16(back(bf16(back(context)))),
    )
    yield Hypothesis(
        cause="inverse-rope-forward",
        detail="turned forwards",
        predict=lambda: bf16(rope.rotate(context, positions)),
    )
    yield Hypothesis(
        cause="rope-half-split",
        detail="turned back in pairs (i, i + n/2)",
        predict=lambda: bf16(half_split(rope, context, -positions)),
    )
    yield Hypothesis(
        cause="rope-base",
        detail="turned back with the other layer kind's frequencies",
        predict=lambda: bf16(inputs.other_rope.rotate(context, positions, inverse=True)),
    )
