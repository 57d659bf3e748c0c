"""The front end."""

from engine.config import EngineConfig, create_engine_config, fusion_is_supported
from engine.worker import run_in_worker


def run_rank(rank: int, config: EngineConfig) -> int:
    config.fuse_allreduce_rms = config.tensor_parallel_size > 1 and fusion_is_supported()
    assert isinstance(config.fuse_allreduce_rms, bool)
    return rank


def start_ranks(tensor_parallel_size: int) -> list[int]:
    config = create_engine_config(tensor_parallel_size)
    return [run_in_worker(run_rank, rank, config) for rank in range(tensor_parallel_size)]
