"""Which platform the engine runs on, asked of NVML as the driver must stay untouched."""

from engine import nvml


class Platform:
    def is_cuda(self) -> bool:
        return nvml.device_count() > 0


current_platform = Platform()
