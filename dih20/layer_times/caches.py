"""Cache bytes that are numbers: random codes, and scales near one."""

from __future__ import annotations

import torch

_E4M3_ONE, _UE8M0_ONE = 0x38, 127
_WINDOW, _COMPRESSED, _INDEX = 528, 288, 68
_INDEX_VALUES = 64


def fill_cache(cache: torch.Tensor) -> None:
    """Fill pages of records.

    Args:
        cache: uint8 (pages, entries, 1, bytes), pages at any stride. 528 bytes: 512 e4m3, 16 ue8m0;
            288: 256 of two e2m1, 32 e4m3; 68: a page's values, then four ue8m0 an entry.
    """
    pages, entries, _, width = cache.shape
    if width == _INDEX:
        page = torch.as_strided(
            cache, (pages, entries * width), (cache.stride(0), 1), cache.storage_offset()
        )
        page[:, : entries * _INDEX_VALUES].random_(0, 256)
        page[:, entries * _INDEX_VALUES :].random_(_UE8M0_ONE - 2, _UE8M0_ONE + 1)
    elif width == _COMPRESSED:
        cache[..., :256].random_(0, 256)
        cache[..., 256:].random_(_E4M3_ONE - 8, _E4M3_ONE + 1)
    else:
        assert width == _WINDOW, f"records of {width} bytes"
        cache[..., :512].random_(0, _E4M3_ONE)
        cache[..., 512:].fill_(_UE8M0_ONE)
