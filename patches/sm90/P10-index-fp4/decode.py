"""One row of logits per query row; each has its own length and block table."""


def _compute_decode_p_sum(
    self,
    q,
    kv_cache,
    weights,
    input_metadata,
    schedule_metadata,
    candidate_blocks,
    candidate_block_size,
):
    if PLATFORM.is_sm90:
        from h20_ops.mqa_logits_paged import mqa_logits_paged

        values, scales = q
        assert values.dtype == torch.int8 and scales is not None, (
            f"index queries are FP4, got {values.dtype}"
        )
        assert kv_cache.shape[-1] == 68, (
            f"index pages of {kv_cache.shape[-1]} bytes an entry, 68 are FP4"
        )
        return mqa_logits_paged(
            values,
            scales,
            kv_cache,
            weights,
            input_metadata.klen[self.ratio_key],
            input_metadata.block_tables,
            max_kv_len=self.max_kv_len,
            candidate_blocks=candidate_blocks,
            candidate_block_size=candidate_block_size,
        )
