"""Grammar masks: on the GPU if there is one, as the grammar library decides for itself."""

import torch


def mask_device() -> str:
    # Asking poisons every later fork, and torch.cuda.is_initialized() stays False.
    return "cuda" if torch.cuda.is_available() else "cpu"
