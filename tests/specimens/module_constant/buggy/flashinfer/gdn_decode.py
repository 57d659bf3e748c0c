"""Decode kernel of the gated delta net."""

import torch

NUM_SMS = torch.cuda.get_device_properties(0).multi_processor_count  # touch: culprit


def num_blocks(batch_size: int, device: torch.device) -> int:
    """How many thread blocks a batch is spread over; 1 off the GPU."""
    if device.type != "cuda":
        return 1
    return max(1, NUM_SMS // batch_size)
