"""Number formats of the checkpoint and the KV caches: e2m1, e4m3, ue8m0 and their scale rules.

The one place for them in this repository. Everything is plain torch and runs on any device;
codes and bytes are exact, so tests compare them bit for bit.
"""

from __future__ import annotations

from h20_ops.formats.e2m1 import E2M1_MAX as E2M1_MAX
from h20_ops.formats.e2m1 import decode_e2m1 as decode_e2m1
from h20_ops.formats.e2m1 import encode_e2m1 as encode_e2m1
from h20_ops.formats.e2m1 import pack_nibbles as pack_nibbles
from h20_ops.formats.e2m1 import unpack_nibbles as unpack_nibbles
from h20_ops.formats.e4m3 import E4M3_MAX as E4M3_MAX
from h20_ops.formats.e4m3 import decode_e4m3 as decode_e4m3
from h20_ops.formats.e4m3 import encode_e4m3 as encode_e4m3
from h20_ops.formats.group_cast import GROUP_RULES as GROUP_RULES
from h20_ops.formats.group_cast import GroupRule as GroupRule
from h20_ops.formats.group_cast import dequantise_groups as dequantise_groups
from h20_ops.formats.group_cast import quantise_groups as quantise_groups
from h20_ops.formats.reencode import Reencoded as Reencoded
from h20_ops.formats.reencode import reencode_fp4_as_fp8 as reencode_fp4_as_fp8
from h20_ops.formats.ue8m0 import decode_ue8m0 as decode_ue8m0
from h20_ops.formats.ue8m0 import encode_ue8m0 as encode_ue8m0
from h20_ops.formats.ue8m0 import load_ue8m0_scales as load_ue8m0_scales

__all__ = [
    "E2M1_MAX",
    "E4M3_MAX",
    "GROUP_RULES",
    "GroupRule",
    "Reencoded",
    "decode_e2m1",
    "decode_e4m3",
    "decode_ue8m0",
    "dequantise_groups",
    "encode_e2m1",
    "encode_e4m3",
    "encode_ue8m0",
    "load_ue8m0_scales",
    "pack_nibbles",
    "quantise_groups",
    "reencode_fp4_as_fp8",
    "unpack_nibbles",
]
