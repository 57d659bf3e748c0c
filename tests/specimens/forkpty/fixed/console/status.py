"""The status line."""

from console import nvml


def status_line() -> str:
    return f"GPUs: {nvml.device_count() or 'none'}"
