"""The cache compressor of the model."""

from engine.models.deepseek_v4.nvidia.ops import compress_kv


class Compressor:
    def __init__(self, ratio: int) -> None:
        self.ratio = ratio

    def __call__(self, rows: list[float]) -> list[float]:
        return compress_kv(rows, self.ratio)
