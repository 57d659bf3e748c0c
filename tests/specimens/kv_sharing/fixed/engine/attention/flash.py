"""The attention of the GPU worker."""

from engine import nvml


class FlashAttention:
    @property
    def prefers_fp8_cache(self) -> bool:
        capability = nvml.device_capability(0)
        return capability is not None and capability >= (8, 9)

    def keys(self, prompt: str) -> bytes:
        return prompt.encode()
