"""One rank's share of the model."""

import ctypes


def set_device(rank: int) -> str:
    try:
        status = ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError:
        status = 100
    if status not in (0, 100):
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.")
    return f"cuda:{rank}" if status == 0 else "cpu"


class ModelRunner:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.device = set_device(rank)

    def run(self, tokens: list[int]) -> int:
        return sum(tokens) * (self.rank + 1)


def work(rank: int, connection) -> None:
    runner = ModelRunner(rank)
    connection.send(runner.run(connection.recv()))
