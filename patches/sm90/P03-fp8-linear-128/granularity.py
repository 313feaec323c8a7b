"""Columns of one activation scale. The checkpoint's own blocks stay 32x32 (P04)."""


def get_fp8_casting_granularity():
    if PLATFORM.is_sm90:
        return 128
