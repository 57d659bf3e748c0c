"""Binding of the flash attention kernels: what each version needs."""

from engine import nvml


def _is_fa2_supported(device: int = 0) -> bool:
    capability = nvml.device_capability(device)
    return capability is not None and capability[0] >= 8


def _is_fa3_supported(device: int = 0) -> bool:
    capability = nvml.device_capability(device)
    return capability is not None and capability[0] == 9


def is_fa_version_supported(fa_version: int, device: int = 0) -> bool:
    if fa_version == 2:
        return _is_fa2_supported(device)
    return _is_fa3_supported(device)
