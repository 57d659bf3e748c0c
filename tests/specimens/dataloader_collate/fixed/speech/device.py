"""What the device can compute with."""

import torch


def compute_dtype() -> torch.dtype:
    if torch.cuda.device_count() and torch.cuda.get_device_capability()[0] >= 8:
        return torch.bfloat16
    return torch.float32
