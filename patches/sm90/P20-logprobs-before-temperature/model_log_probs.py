"""What is reported of a sampled token; the choice itself is made before and does not change."""


def model_log_probs(logits, logprobs_out, tag, outputs):
    """Put the log-softmax of the logits as they came into the buffer of the reported log-probs.

    Drafts are left as they are: they have a buffer or a random stream of their own.

    Args:
        logits: fp32, (rows, vocab), or the force_topk best of each row; the kernel only reads them.
        outputs: what sampling gives back, log-probs first, fp32, of the shape of logits.
    """
    if tag != "default" or logprobs_out is not None:
        return outputs
    return torch.log_softmax(logits, dim=-1, out=outputs[0]), *outputs[1:]
