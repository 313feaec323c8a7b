"""Packed rows become bf16 here: e4m3 times a power of two is exact, and the linear casts by itself."""


def forward(self, hidden_states, embed_hook, images_seq_mask=None):
    if PLATFORM.is_sm90:
        rows = embed_hook()
        if isinstance(rows, tuple):
            values, packed = rows
            assert packed.dtype == PLATFORM.fp8_sf_type, (
                f"Engram scales are packed UE8M0, got {packed.dtype}"
            )
            exponents = packed.contiguous().view(torch.uint8).to(torch.int32) - 127
            scales = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents)
            assert scales.shape[-1] * 32 == values.shape[-1], f"{values.shape=}, {packed.shape=}"
            rows = (
                (values.float().unflatten(-1, (-1, 32)) * scales.unsqueeze(-1))
                .flatten(-2)
                .bfloat16()
            )
        assert rows.dtype == torch.bfloat16, (
            f"Engram rows for an SM90 linear are bf16, got {rows.dtype}"
        )

        def embed_hook():
            return rows
