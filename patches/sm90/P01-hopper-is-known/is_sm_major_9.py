"""The one question that all SM90 branches ask."""


@functools.cache
def is_sm_major_9() -> bool:
    if accelerator_kind() != "nvidia":
        return False
    capability = nvidia.compute_capability()
    return capability is not None and capability[0] == 9
