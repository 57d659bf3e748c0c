"""A module constant that asks the CUDA runtime a question."""

import torch

SUPPORTED = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
