"""Root mean square normalization."""

from minitriton.runtime.autotuner import autotune


@autotune(configs=[{"block": 2}, {"block": 4}])
def rms_norm(row: list[float], block: int = 2) -> list[float]:
    total = 0.0
    for start in range(0, len(row), block):
        total += sum(value * value for value in row[start : start + block])
    scale = (total / len(row)) ** -0.5
    return [value * scale for value in row]
