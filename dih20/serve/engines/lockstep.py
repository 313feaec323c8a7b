"""Ranks of one host that run every step together, over gloo; a lost rank ends the others.

All exchanges are collective: every rank calls the same ones in the same order, each within the
deadline, or RankLost names the rank that did not come. The group is gloo's own object and not
torch's default group, which the engine itself may need.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dih20.errors import RankLost
from dih20.serve.engines.interface import Agreed
from dih20.serve.engines.whereabouts import Whereabouts

if TYPE_CHECKING:
    import torch

DEADLINE_S = 20.0  # with the noticing and ending around it, others end well within 30 s
_JOIN_S = 120.0  # ranks come one by one, each imports torch first
_LOOK_S = 0.05
_PLACE = re.compile(r"\s*\[[^\]\s]*:\d+\]\s*")  # where in gloo's sources, from another machine


class GlooLockstep:
    """One rank's end of the group.

    Example:
        lockstep = GlooLockstep(context.rendezvous, rank=0, ranks=2)
        lockstep.wait_for_loaded()
        while lockstep.agree(engine.has_work(), wake).step: ...
    """

    def __init__(
        self, folder: Path, *, rank: int, ranks: int, deadline_s: float = DEADLINE_S
    ) -> None:
        from torch import distributed

        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one host; its own name may not resolve
        self.rank, self.ranks, self.deadline_s = rank, ranks, deadline_s
        self.whereabouts = Whereabouts(folder / "ranks", rank, ranks)
        self._distributed: Any = distributed
        self._max = self._options(distributed.ReduceOp.MAX, deadline_s)
        self._sum = self._options(distributed.ReduceOp.SUM, deadline_s)
        self._group: Any = None
        store = distributed.FileStore(str(folder / "store"), ranks)
        join = timedelta(seconds=max(_JOIN_S, deadline_s))
        self._exchange(lambda: self._join(store, join))

    def _options(self, operation: Any, deadline_s: float) -> Any:
        options = self._distributed.AllreduceOptions()
        options.reduceOp, options.timeout = operation, timedelta(seconds=deadline_s)
        return options

    def _join(self, store: Any, patience: timedelta) -> None:
        group = self._distributed.ProcessGroupGloo(store, self.rank, self.ranks, patience)
        group._set_default_timeout(timedelta(seconds=self.deadline_s))
        self._group = group

    def agree(self, work: bool, wakes: int) -> Agreed:
        """See interface.Lockstep: one small exchange a turn."""
        import torch

        # the largest of the negative is the fewest; see Agreed for why
        values = torch.tensor([int(work), -wakes], dtype=torch.int64)
        self._exchange(lambda: self._group.allreduce([values], self._max).wait())
        any_work, fewest = values.tolist()
        return Agreed(work=bool(any_work), wakes=-fewest)

    def gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Give every rank's tensor, in the order of ranks; all have one shape and dtype."""
        import torch

        out = [torch.empty_like(mine) for _ in range(self.ranks)]
        self._exchange(lambda: self._group.allgather([out], [mine]).wait())
        return out

    def total(self, mine: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, in place."""
        self._exchange(lambda: self._group.allreduce([mine], self._sum).wait())
        return mine

    def wait_for_loaded(self) -> None:
        """Wait until every rank has come here: without a deadline, loading may take long.

        Whoever watches the ranks' progress ends a start that hangs; one that died is seen here.
        """
        self.whereabouts.loaded()
        while self.whereabouts.not_loaded():
            if self.whereabouts.gone():
                raise self._lost("while loading")
            time.sleep(_LOOK_S)

    def _exchange(self, run: Callable[[], object]) -> None:
        self.whereabouts.enter()
        try:
            run()
        except RuntimeError as fault:  # gloo has no narrower one: closed by peer, timed out
            raise self._lost(_PLACE.sub("", str(fault)).partition(". ")[0]) from fault

    def _lost(self, reason: str) -> RankLost:
        rank, text = self.whereabouts.culprit()
        named = text if rank is not None else f"an exchange failed and {text}"
        return RankLost(
            found=f"{named}; rank {self.rank} cannot go on without it ({reason})",
            expected=f"all {self.ranks} ranks in every exchange, within {self.deadline_s:g} s",
            remedy="read that rank's own last lines in the log; then start the server again",
            details={"rank": rank, "told_by": self.rank},
        )

    def close(self) -> None:
        """Leave without waiting for anybody."""
        self._group = None
        self.whereabouts.close()
