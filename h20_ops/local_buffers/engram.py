"""Engram tables of one rank: rows are looked up where they lie and given as bf16, exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from h20_ops.errors import UnsupportedError
from h20_ops.local_buffers.one_rank import want_one_rank

if TYPE_CHECKING:
    import torch

_GROUP = 32
_EXPONENTS_PER_PACK = 4


class LocalEngramBuffer:
    """EngramBuffer of a single rank, whose hooks give bf16.

    The real one gives e4m3 rows with packed 32-wide exponents, which an SM90 linear layer cannot
    take: it would read them as fp32 scales. An e4m3 value times a power of two is exact in bf16.
    """

    def __init__(self, *, group: Any, use_cpu_rdma_storage: bool = False, **_sizes: Any) -> None:
        want_one_rank(group, "LocalEngramBuffer", "EngramBuffer")
        if use_cpu_rdma_storage:
            raise UnsupportedError(
                "LocalEngramBuffer with its tables in host memory",
                "tables in GPU memory",
                "set DEEPINFER_ENGRAM_FORCE_GPU_STORAGE=1, or use a checkpoint whose tables fit there",
            )
        self._rows: list[int] = []
        self._width = 0
        self._entries = 0
        self._packs = 0
        self._tables: list[torch.Tensor] = []
        self._packed: list[torch.Tensor] | None = None

    @staticmethod
    def get_storage_size_hint(*_sizes: Any, **_named: Any) -> tuple[int, int]:
        """Give 0 bytes of GPU buffer and 0 of storage: the tables stay where the loader put them."""
        return 0, 0

    @staticmethod
    def get_theoretical_config(*_sizes: Any, **_named: Any) -> tuple[int, int, bool]:
        """Give what the constructor takes for queues; no queue is made."""
        return 1, 1, False

    def set_config(
        self,
        num_entries_per_layer: Sequence[int],
        hidden_size: int,
        max_num_tokens: int,
        num_entries_per_token: int,
        dtype: torch.dtype,
        num_sf_packs: int = 0,
    ) -> None:
        """Say what the tables hold: rows per layer, row width, entries a token looks up."""
        assert max_num_tokens >= 0, max_num_tokens
        wanted = 0 if dtype.itemsize != 1 else hidden_size // _GROUP // _EXPONENTS_PER_PACK
        assert num_sf_packs == wanted, f"num_sf_packs {num_sf_packs}, {wanted} for {dtype}"
        self._rows = list(num_entries_per_layer)
        self._width, self._entries, self._packs = hidden_size, num_entries_per_token, num_sf_packs

    def write(
        self, weights: Sequence[torch.Tensor], sfs: Sequence[torch.Tensor] | None = None
    ) -> None:
        """Keep the tables.

        Args:
            weights: per layer e4m3 (or its bytes) or bf16, (rows, width).
            sfs: per layer int32 (rows, num_sf_packs), four ue8m0 exponents each, lowest columns first.
        """
        import torch

        assert len(weights) == len(self._rows), (len(weights), len(self._rows))
        assert (sfs is not None) == (self._packs > 0), (
            "exponents come with e4m3 tables and only then"
        )
        for layer, table in enumerate(weights):
            want = (self._rows[layer], self._width)
            assert tuple(table.shape) == want, f"table {layer}: {tuple(table.shape)}, want {want}"
            if sfs is not None:
                packed = sfs[layer]
                assert packed.dtype == torch.int32, f"exponents {layer}: {packed.dtype}, want int32"
                want = (self._rows[layer], self._packs)
                assert tuple(packed.shape) == want, f"exponents {layer}: {tuple(packed.shape)}"
        self._tables = list(weights)
        self._packed = None if sfs is None else [packed.contiguous() for packed in sfs]

    def fetch(
        self, indices: torch.Tensor, use_tma_aligned_col_major_sf: bool = True
    ) -> list[Callable[[], torch.Tensor]]:
        """Give one hook per layer; a hook looks its rows up when it is called.

        Args:
            indices: int32 (layers, tokens, entries); -1, an image token, reads row 0.
        Returns:
            hooks giving bf16 (tokens, entries * width).
        """
        assert self._tables, "write the tables before the first fetch"
        assert indices.shape[0] == len(self._tables), (tuple(indices.shape), len(self._tables))
        assert indices.shape[2] == self._entries, (tuple(indices.shape), self._entries)
        return [self._hook(layer, indices[layer]) for layer in range(len(self._tables))]

    def destroy(self) -> None:
        """Let go of the tables."""
        self._tables, self._packed = [], None

    def _hook(self, layer: int, indices: torch.Tensor) -> Callable[[], torch.Tensor]:
        def look_up() -> torch.Tensor:
            import torch

            rows = indices.flatten().clamp_min(0).long()
            table = self._tables[layer]
            if self._packed is None:
                return table.index_select(0, rows).view(indices.shape[0], -1)
            codes = table.view(torch.uint8).index_select(0, rows).view(torch.float8_e4m3fn)
            scales = _unpacked(self._packed[layer].index_select(0, rows))
            values = codes.to(torch.bfloat16).unflatten(1, (-1, _GROUP)) * scales.unsqueeze(-1)
            return values.reshape(indices.shape[0], self._entries * self._width)

        return look_up


def _unpacked(packed: torch.Tensor) -> torch.Tensor:
    """Give bf16 powers of two, (rows, 4 * packs), of packed exponents."""
    import torch

    from h20_ops.formats import decode_ue8m0

    return decode_ue8m0(packed.view(torch.uint8)).to(torch.bfloat16)
