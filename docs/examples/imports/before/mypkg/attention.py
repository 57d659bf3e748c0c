"""A capability query in a class body runs when the module is imported."""

import torch


class MetadataBuilder:
    """Prepares attention on the GPU."""

    cudagraphs = "always" if torch.cuda.get_device_capability()[0] == 9 else "uniform"
