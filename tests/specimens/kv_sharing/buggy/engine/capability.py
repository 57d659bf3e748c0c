"""What the device can do."""

import torch


def capability_of(device: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
