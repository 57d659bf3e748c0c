"""The same query, asked when the answer is needed."""

import functools

import torch


class MetadataBuilder:
    """Prepares attention on the GPU."""

    @staticmethod
    @functools.cache
    def cudagraphs() -> str:
        """How far batches can be captured; asked by the process that uses the GPU."""
        return "always" if torch.cuda.get_device_capability()[0] == 9 else "uniform"
