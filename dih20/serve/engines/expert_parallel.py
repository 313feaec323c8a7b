"""The reference with its experts spread over ranks.

Every rank runs its own sequences through attention, router and shared expert. At each MoE site the
rows of all ranks are gathered, each rank computes what its experts say to them, and the outputs are
summed back to the rows' owner, one place per chosen expert. A place is filled by one rank only and
the owner adds the places in the order of expert ids, so an answer is bit for bit that of one rank.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dih20.serve.engines.lockstep import GlooLockstep
from v41.model import Reference


def share(experts: int, rank: int, ranks: int) -> range:
    """Give the experts that a rank holds: consecutive, as even as whole numbers allow."""
    return range(rank * experts // ranks, (rank + 1) * experts // ranks)


def is_held(name: str, held: range) -> bool:
    """Whether a tensor of the checkpoint belongs on a rank: all do but others' routed experts."""
    _, mark, rest = name.partition(".ffn.experts.")
    return not mark or int(rest.partition(".")[0]) in held


class ExpertParallelReference(Reference):
    """A reference that holds the weights of a share of the experts.

    Example:
        model.lockstep, model.held = lockstep, share(config.n_routed_experts, rank, ranks)
        model.join(len(tokens))                 # every rank at the same time, or
        logits = model.extend(tokens, cache)    # model.pad() in place of both
    """

    lockstep: GlooLockstep
    held: range
    _rows: list[int]

    def join(self, rows: int) -> None:
        """Begin a pass together with the others; rows: how many tokens this rank brings, or 0."""
        counts = self.lockstep.gather(torch.tensor([rows], dtype=torch.int64))
        self._rows = [int(count) for count in counts]

    def pad(self) -> None:
        """Take part in a pass of the others without a token of one's own."""
        self.join(0)
        if not any(self._rows):
            return
        row = self.weights["norm.weight"].unsqueeze(0)  # of the model's width, on its device
        choice = torch.zeros(1, self.config.num_experts_per_tok, device=row.device)
        for layer in range(self.config.num_hidden_layers):
            self._places(f"layers.{layer}.ffn", row[:0], choice[:0].long(), choice[:0])

    def _routed(
        self, site: str, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        places = self._places(site, x, chosen, weights)
        out = torch.zeros_like(x)
        for index in range(self.config.n_routed_experts):
            token, place = (chosen == index).nonzero(as_tuple=True)
            if len(token):
                out = out.index_add(0, token, places[token, place])
        return out

    def _places(
        self, site: str, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Give what each chosen expert, wherever it is held, says to each row.

        Args:
            x: fp32, (rows, D).    chosen: int64, weights: fp32, both (rows, topk).
        Returns:
            fp32, (rows, topk, D), in the order of `chosen`.
        """
        places = torch.zeros(len(self._rows), max(self._rows), chosen.shape[1], x.shape[1])
        rows_of_ranks = self._gathered(x, chosen, weights)
        for rank, (rows, ids, row_weights) in enumerate(rows_of_ranks):
            for index in self.held:
                token, place = (ids == index).nonzero(as_tuple=True)
                if len(token):
                    name = f"{site}.experts.{index}"
                    said = self._expert(name, rows[token], row_weights[token, place])
                    places[rank, token.cpu(), place.cpu()] = said.cpu()
        mine = self.lockstep.total(places)[self.lockstep.rank, : len(x)]
        return mine.to(x.device)

    def _gathered(
        self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Give (x, chosen, weights) of every rank; sent as one fp32 tensor of the longest's rows."""
        packed = torch.cat((x, chosen.to(x.dtype), weights), dim=-1).cpu()
        padding = max(self._rows) - len(packed)
        packed = torch.nn.functional.pad(packed, (0, 0, 0, padding))
        sizes = x.shape[1], chosen.shape[1], chosen.shape[1]
        for count, theirs in zip(self._rows, self.lockstep.gather(packed), strict=True):
            rows, ids, row_weights = theirs[:count].to(x.device).split(sizes, dim=-1)
            yield rows, ids.long(), row_weights
