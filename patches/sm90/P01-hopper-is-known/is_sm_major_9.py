"""The one question that all SM90 branches ask."""


@functools.cache
def is_sm_major_9() -> bool:
    if accelerator_kind() != "nvidia":
        return False
    capability = nvidia.compute_capability()
    if capability is None:  # without this, a Hopper GPU would silently take Blackwell's kernels
        raise RuntimeError(
            "NVML does not tell the GPU's compute capability: give the container the driver "
            "capability 'utility' (NVIDIA_DRIVER_CAPABILITIES), so that libnvidia-ml.so.1 is there"
        )
    return capability[0] == 9
