"""How many GPUs there are."""

from gpustats import nvml


def count_gpus() -> int:
    return nvml.device_count()
