"""An engine core that also measures its sums over ranks; for ``bench_tp``.

It is a module of its own so that ranks can import it, however they are started.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch

from sample_engine.config import EngineConfig
from sample_engine.engine_core import EngineCore
from sample_engine.graphs.execution import CudaGraphExecution
from sample_engine.parallel.place import RankPlace

__all__ = ["MeasuredCore", "measured_core"]

_REPLAYS = 50


class MeasuredCore(EngineCore):
    """A core that knows what the sums of one forward pass take, by the number of its tokens."""

    def __init__(self, config: EngineConfig, place: RankPlace | None, sizes: tuple[int, ...]):
        super().__init__(config, place=place)
        self._sums = {size: self._microseconds(size) for size in sizes}

    def info(self) -> dict[str, Any]:
        """As ever, and the microseconds."""
        return {**super().info(), "sums_us": self._sums}

    def _microseconds(self, num_tokens: int) -> float:
        """All sums of a pass in one CUDA graph, as the engine has them; 0 for one rank."""
        runner = self.runner
        ranks = runner.ranks
        if ranks is None:
            return 0.0
        shape = (num_tokens, runner.model_config.hidden_size)
        stream = torch.zeros(shape, dtype=runner.dtype, device=runner.device)

        def sums() -> None:
            for _ in range(1 + 2 * runner.num_layers):
                ranks.all_reduce(stream)

        execution = CudaGraphExecution(runner.device)
        with torch.inference_mode():
            with execution.session():
                sums()
                graph = execution.capture(sums, execution.new_pool())
            times = []
            for _ in range(_REPLAYS):
                began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                began.record()
                graph.replay()
                ended.record()
                ended.synchronize()
                times.append(began.elapsed_time(ended) * 1e3)
            graph.reset()
        return float(round(statistics.median(times), 1))


def measured_core(config: EngineConfig, place: RankPlace | None = None) -> MeasuredCore:
    """Make the core; batches of 1, 8 and 64 decodes, and a step of a long prompt."""
    return MeasuredCore(config, place, (1, 8, 64, config.max_num_batched_tokens))
