"""No schedule is made ahead: the operators read lengths and block tables themselves."""


def _get_decode_metadata(
    self,
    q_dtype,
    compressed_block_size,
    input_metadata,
    candidate_blocks,
    candidate_block_size,
    cross_layer_runtime,
):
    if PLATFORM.is_sm90:
        assert candidate_blocks is None or compressed_block_size % candidate_block_size == 0, (
            f"a candidate block of {candidate_block_size} would cross pages of {compressed_block_size}"
        )
        return None
