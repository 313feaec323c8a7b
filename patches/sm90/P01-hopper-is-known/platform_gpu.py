"""The type of the scales that go into a GEMM; packed containers keep fp8_sf_type."""


def __init__(self):
    import torch
    from deep_cluster.hardware.device import is_sm_major_9

    self.is_sm90 = is_sm_major_9()
    self.gemm_sf_type = torch.float32 if self.is_sm90 else torch.int32
