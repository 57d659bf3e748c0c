"""The attention of the GPU worker."""

from engine import nvml
from engine.capability import capability_of


class FlashAttention:
    prefers_fp8_cache = nvml.device_count() > 0 and capability_of(0) >= (8, 9)  # touch: culprit

    def keys(self, prompt: str) -> bytes:
        return prompt.encode()
