"""Name every KV-cache record we know, field by field.

Two layouts may share a tensor shape: the 528-byte record exists token by token and page by page,
the 132-byte index record with one fp32 or four ue8m0 scales. Nothing in a tensor tells them apart,
so every function that touches cache bytes takes the layout as an argument.

A page is `page_size * bytes_per_token` bytes at `page * stride(0)`. Inside it, the unit of field
f that holds channel d of the token in slot t starts at

    page_size * f.page_offset + t * f.token_stride + f.offset
        + ((d - f.first_channel) // f.channels_per_unit) * f.unit_bytes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Encoding = Literal["e4m3", "e2m1", "bf16", "ue8m0", "fp32"]
UNIT_BYTES: dict[str, int] = {"e4m3": 1, "e2m1": 1, "bf16": 2, "ue8m0": 1, "fp32": 4}


@dataclass(frozen=True, kw_only=True)
class Field:
    """One run of bytes per token: values, or the scales of values.

    page_offset counts bytes per page entry: 0 for a field inside the token's own record, the size
    of everything stored before it per entry for a field that follows all values of the page.
    """

    encoding: Encoding
    first_channel: int
    num_channels: int
    channels_per_unit: int
    token_stride: int
    offset: int
    page_offset: int = 0

    @property
    def unit_bytes(self) -> int:
        return UNIT_BYTES[self.encoding]

    @property
    def num_bytes(self) -> int:
        """Bytes of this field per token."""
        return self.num_channels // self.channels_per_unit * self.unit_bytes

    def byte_offset(self, page_size: int, slot: int, channel: int) -> int:
        """Byte, counted from the page's first, of the unit holding (slot, channel)."""
        last = self.first_channel + self.num_channels
        assert self.first_channel <= channel < last, (channel, self.first_channel, last)
        assert 0 <= slot < page_size, (slot, page_size)
        unit = (channel - self.first_channel) // self.channels_per_unit
        in_token = slot * self.token_stride + self.offset + unit * self.unit_bytes
        return page_size * self.page_offset + in_token


@dataclass(frozen=True, kw_only=True)
class KvLayout:
    """A record layout: scaled values, their scales, and perhaps unscaled bf16 channels."""

    name: str
    bytes_per_token: int
    head_dim: int
    values: Field
    scales: Field
    plain: Field | None = None

    @property
    def channels_per_scale(self) -> int:
        return self.scales.channels_per_unit

    @property
    def fields(self) -> tuple[Field, ...]:
        return (self.values, self.scales) + ((self.plain,) if self.plain else ())

    @property
    def is_token_interleaved(self) -> bool:
        """True when everything about one token is one contiguous record."""
        return all(field.page_offset == 0 for field in self.fields)

    def describe(self) -> str:
        """Return where each field of (slot t, channel d) is; B is the page size."""
        lines = [f"{self.name}: {self.bytes_per_token} bytes per token, {self.head_dim} channels"]
        for name, field in zip(("values", "scales", "plain"), self.fields, strict=False):
            page = f"B*{field.page_offset} + " if field.page_offset else ""
            offset = f" + {field.offset}" if field.offset else ""
            channel = f"(d-{field.first_channel})" if field.first_channel else "d"
            unit = f"{channel}//{field.channels_per_unit}"
            size = f"{field.unit_bytes}*({unit})" if field.unit_bytes > 1 else unit
            last = field.first_channel + field.num_channels - 1
            lines.append(
                f"  {name}: {field.encoding}, channels {field.first_channel}..{last}, "
                f"byte {page}t*{field.token_stride}{offset} + {size}"
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.name


def _values(encoding: Encoding, channels: int, stride: int) -> Field:
    return Field(
        encoding=encoding,
        first_channel=0,
        num_channels=channels,
        channels_per_unit=2 if encoding == "e2m1" else 1,
        token_stride=stride,
        offset=0,
    )


def _scales(
    encoding: Encoding, channels: int, group: int, stride: int, offset: int = 0, page: int = 0
) -> Field:
    return Field(
        encoding=encoding,
        first_channel=0,
        num_channels=channels,
        channels_per_unit=group,
        token_stride=stride,
        offset=offset,
        page_offset=page,
    )


def _rope(first_channel: int, stride: int, offset: int) -> Field:
    return Field(
        encoding="bf16",
        first_channel=first_channel,
        num_channels=64,
        channels_per_unit=1,
        token_stride=stride,
        offset=offset,
    )


V41_FP8 = KvLayout(
    name="v41_fp8",
    bytes_per_token=528,
    head_dim=512,
    values=_values("e4m3", 512, 528),
    scales=_scales("ue8m0", 512, 32, 528, offset=512),
)
V41_FP4 = KvLayout(
    name="v41_fp4",
    bytes_per_token=288,
    head_dim=512,
    values=_values("e2m1", 512, 288),
    scales=_scales("e4m3", 512, 16, 288, offset=256),
)
# The 2026-09-10 FlashMLA release and vLLM's fork; never what DeepInfer stores.
V41_FP8_PAGE_SPLIT = KvLayout(
    name="v41_fp8_page_split",
    bytes_per_token=528,
    head_dim=512,
    values=_values("e4m3", 512, 512),
    scales=_scales("ue8m0", 512, 32, 16, page=512),
)
V41_FP4_PAGE_SPLIT = KvLayout(
    name="v41_fp4_page_split",
    bytes_per_token=288,
    head_dim=512,
    values=_values("e2m1", 512, 256),
    scales=_scales("e4m3", 512, 16, 32, page=256),
)
V4_FP8 = KvLayout(
    name="v4_fp8",
    bytes_per_token=584,
    head_dim=512,
    values=_values("e4m3", 448, 576),
    scales=_scales("ue8m0", 448, 64, 8, page=576),  # 7 scales and one byte of padding
    plain=_rope(448, 576, 448),
)
V32_FP8 = KvLayout(
    name="v32_fp8",
    bytes_per_token=656,
    head_dim=576,
    values=_values("e4m3", 512, 656),
    scales=_scales("fp32", 512, 128, 656, offset=512),
    plain=_rope(512, 656, 528),
)
INDEX_FP8_FP32 = KvLayout(
    name="index_fp8_fp32",
    bytes_per_token=132,
    head_dim=128,
    values=_values("e4m3", 128, 128),
    scales=_scales("fp32", 128, 128, 4, page=128),
)
INDEX_MXFP8 = KvLayout(
    name="index_mxfp8",
    bytes_per_token=132,
    head_dim=128,
    values=_values("e4m3", 128, 128),
    scales=_scales("ue8m0", 128, 32, 4, page=128),
)
INDEX_MXFP4 = KvLayout(
    name="index_mxfp4",
    bytes_per_token=68,
    head_dim=128,
    values=_values("e2m1", 128, 64),
    scales=_scales("ue8m0", 128, 32, 4, page=64),
)

LAYOUTS: dict[str, KvLayout] = {
    layout.name: layout
    for layout in (
        V41_FP8,
        V41_FP4,
        V41_FP8_PAGE_SPLIT,
        V41_FP4_PAGE_SPLIT,
        V4_FP8,
        V32_FP8,
        INDEX_FP8_FP32,
        INDEX_MXFP8,
        INDEX_MXFP4,
    )
}
