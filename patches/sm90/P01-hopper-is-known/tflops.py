"""Dense bf16 peaks, only for the MFU line: H20 148, H100 and H200 989."""


def get_bf16_tflops_limit():
    if is_sm_major_9():
        import re

        import torch

        return 148 if re.search(r"\bH20\b", torch.cuda.get_device_name()) else 989
