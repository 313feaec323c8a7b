"""Dense: column c of a row is key ks + c. With candidates: the columns of the row's blocks, one after the other."""


def _compute_prefill_p_sum(
    self,
    q,
    kv,
    weights,
    input_metadata,
    chunk,
    candidate_blocks,
    candidate_block_size,
    cross_layer_runtime,
):
    if PLATFORM.is_sm90:
        from h20_ops.mqa_logits_prefill import mqa_logits_prefill

        values, scales = q
        assert values.dtype == torch.int8 and scales is not None, (
            f"index queries are FP4, got {values.dtype}"
        )
        return mqa_logits_prefill(
            values[chunk],
            scales[chunk],
            *kv,
            weights[chunk],
            input_metadata.ks[self.ratio_key][chunk],
            input_metadata.ke[self.ratio_key][chunk],
            max_kv_len=self.max_kv_len,
            candidate_blocks=candidate_blocks[chunk] if candidate_blocks is not None else None,
            candidate_block_size=candidate_block_size,
        )
