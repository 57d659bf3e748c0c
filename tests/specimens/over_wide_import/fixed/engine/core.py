"""The engine: checks its config, then runs the model in a worker."""

from engine.platforms.cuda import check_and_update_config
from engine.worker import run_in_worker


def _forward(tokens: list[int]) -> int:
    from engine.attention.backends.flashmla import FlashMLABackend

    return FlashMLABackend().forward(tokens)


def run(tokens: list[int], block_size: int) -> int:
    check_and_update_config(block_size)
    return run_in_worker(_forward, tokens)
