"""Binding of the flash attention kernels: what each version needs."""

import torch


def _is_fa2_supported(device=None) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 8


def _is_fa3_supported(device=None) -> bool:
    return torch.cuda.get_device_capability(device)[0] == 9


def is_fa_version_supported(fa_version: int, device=None) -> bool:
    if fa_version == 2:
        return _is_fa2_supported(device)
    return _is_fa3_supported(device)
