"""The same name, from where this GPU has it."""

from deep_cluster.hardware.device import is_sm_major_9

if is_sm_major_9():
    from h20_ops.vit_attention import vit_attention as _flash_attn_fwd
else:
    from flash_attn.cute.interface import _flash_attn_fwd
