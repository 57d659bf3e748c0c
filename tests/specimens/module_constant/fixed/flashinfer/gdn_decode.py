"""Decode kernel of the gated delta net."""

import functools

import torch


@functools.cache
def get_num_sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def num_blocks(batch_size: int, device: torch.device) -> int:
    """How many thread blocks a batch is spread over; 1 off the GPU."""
    if device.type != "cuda":
        return 1
    return max(1, get_num_sms(device) // batch_size)
