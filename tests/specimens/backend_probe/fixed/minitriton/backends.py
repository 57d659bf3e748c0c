"""The backends, and which of them finds its hardware."""

from minitriton import nvml


class CudaDriver:
    @staticmethod
    def is_active() -> bool:
        return nvml.device_count() > 0


class HipDriver:
    @staticmethod
    def is_active() -> bool:
        return False


backends = {"nvidia": CudaDriver, "amd": HipDriver}


def active_backends() -> list[str]:
    return [name for name, driver in backends.items() if driver.is_active()]
