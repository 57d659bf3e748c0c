"""Matrix products, by the best kernel that is installed."""

from flashinfer.tile_utils import is_cuda_tile_available

BACKENDS = ["cutlass"]
if is_cuda_tile_available():  # touch: culprit
    BACKENDS.append("tile")


def gemm(a: list[list[int]], b: list[list[int]]) -> list[list[int]]:
    columns = list(zip(*b, strict=True))
    return [[sum(x * y for x, y in zip(row, col, strict=True)) for col in columns] for row in a]
