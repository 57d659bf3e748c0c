"""The engine core: requests in, new tokens out, a step at a time.

A step is three calls: the scheduler picks a batch (``Scheduler.schedule``), the model runs on it
(``ModelRunner.run``), and the scheduler takes in what came of it (``Scheduler.postprocess``).
With ``async_scheduling`` a step is only launched (``ModelRunner.launch``), and what came of the one
before is taken in then: so the device has work while all else is done here.

It runs where CUDA may be used: in the core's process, or in the caller's if that is wished.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch

from sample_engine.attention.kernels.fp8_cache import blocks_of
from sample_engine.batch.outputs import CoreOutput
from sample_engine.batch.request import Request
from sample_engine.batch.request_limits import (
    SchedulerLimits,
    check_stop_tokens,
    vocabulary_tokens,
)
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.batch.scheduled_batch import ScheduledBatch, StepResult
from sample_engine.batch.step_under_way import StepUnderWay
from sample_engine.config import EngineConfig
from sample_engine.errors import EngineDeadError
from sample_engine.graphs.execution import GraphExecution
from sample_engine.kv_transfer.block_mover import BlockMover
from sample_engine.kv_transfer.connector import KVConnector
from sample_engine.kv_transfer.model_hash import model_hash
from sample_engine.model_runner import ModelRunner
from sample_engine.parallel.place import RankPlace
from sample_engine.scheduler import Scheduler

__all__ = ["EngineCore"]


class EngineCore:
    """A model and the requests that it works on."""

    def __init__(
        self,
        config: EngineConfig,
        graph_execution: GraphExecution | None = None,
        place: RankPlace | None = None,
    ) -> None:
        self.config = config
        self._last_step: tuple[ScheduledBatch, StepResult] | None = None
        self._under_way: deque[StepUnderWay] = deque()  # by their order; at most two
        with _as_by_itself():
            self._runner: ModelRunner | None = ModelRunner(config, graph_execution, place)
            self._runner.capture_graphs()
        self._info = _info(self._runner)
        self._vocab_size = self._runner.model_config.vocab_size
        self._arrivals = 0
        speculator, step_graphs = self._runner.speculator, self._runner.step_graphs
        self._connector = _connector(self._runner)
        self.scheduler = Scheduler(
            SchedulerLimits(
                num_blocks=self._runner.num_blocks,
                block_size=config.block_size,
                max_model_len=self._runner.max_model_len,
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                enable_chunked_prefill=config.enable_chunked_prefill,
                enable_prefix_caching=config.enable_prefix_caching,
                eos_token_id=self._runner.model_config.eos_token_ids,
                lookahead=speculator.lookahead if speculator else 0,
                sees_next_token=speculator is not None and speculator.sees_next_token,
                ahead=step_graphs.most_tokens if step_graphs else 0,
            ),
            self._connector,
        )

    @property
    def runner(self) -> ModelRunner:
        """What runs the model. Raises :class:`EngineDeadError` after :meth:`shutdown`."""
        if self._runner is None:
            raise EngineDeadError("This engine core has been shut down: make a new one.")
        return self._runner

    def add_request(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        """Queue a request. Raises :class:`PromptError` for one that could never run."""
        tokens = vocabulary_tokens(request_id, prompt_token_ids, self._vocab_size)
        check_stop_tokens(f"Request {request_id!r}", params, self._vocab_size)
        arrival = self._arrivals
        seed = params.seed
        if seed is None:
            seed = _drawn_seed(self.config.seed, arrival)
        self.scheduler.add(Request(request_id, tokens, params, _as_int64(seed), arrival))
        self._arrivals += 1

    def abort(self, request_ids: Iterable[str]) -> None:
        """End requests without another word. Unknown ids are those that have ended already."""
        self.scheduler.abort(request_ids)

    def step(self) -> list[CoreOutput]:
        """Compute a step: what is new for each request that got tokens or ended. Idle: nothing.

        With ``async_scheduling`` that is of the step before, while this one is computed.
        """
        with _as_by_itself():
            return self._step(self.runner)

    def _step(self, runner: ModelRunner) -> list[CoreOutput]:
        batch = self.scheduler.schedule()
        if self.config.async_scheduling:
            batch, result = self._run_ahead(batch)
        else:
            result = runner.run(batch) if batch.requests else StepResult((), ())
        self._last_step = batch, result
        outputs = self.scheduler.postprocess(batch, result)
        if self._connector is not None:
            self._connector.save(self.scheduler.kv.take_computed())
        return outputs

    def _run_ahead(self, batch: ScheduledBatch) -> tuple[ScheduledBatch, StepResult]:
        """Launch a step; return the one before, which is the last one if this one is empty."""
        if batch.requests:
            self._under_way.append(self.runner.launch(batch))
        if len(self._under_way) <= bool(batch.requests):
            return ScheduledBatch(()), StepResult((), ())
        step = self._under_way.popleft()
        return step.batch, step.result()

    def step_digest(self) -> int:
        """A number of what the last step computed and chose: the same in each rank, or they differ.

        0 before the first step.
        """
        if self._last_step is None:
            return 0
        batch, result = self._last_step
        parts = ((part.request.arrival, part.start, part.count) for part in batch.requests)
        return hash((*parts, result.sampled, result.drafts))  # whole numbers alone: not salted

    def has_unfinished(self) -> bool:
        """Whether another step has something to do or to say."""
        return self._runner is not None and bool(self.scheduler.has_unfinished() or self._under_way)

    def metrics(self) -> dict[str, Any]:
        """What happened so far, in numbers."""
        shared = {} if self._connector is None else {"kv_transfer": self._connector.metrics()}
        return {**self.scheduler.metrics(), **shared}

    def info(self) -> dict[str, Any]:
        """What the configuration came to on this machine. Plain values."""
        return dict(self._info)

    def shutdown(self) -> None:
        """Let go of all memory. Requests that have not finished are dropped; twice does no harm."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        if self._connector is not None:
            self._connector.close()
        while self._under_way:  # nothing is let go of that the device still works with
            self._under_way.popleft().result()
        on_gpu, ranks = runner.device.type == "cuda", runner.ranks
        del runner
        self._last_step = None
        if on_gpu:
            torch.cuda.empty_cache()
        if ranks is not None:
            ranks.close()


def _as_by_itself() -> AbstractContextManager[object]:
    """Let torch do what it does by itself, whatever the program that runs or forks the core wants.

    A program may say ``torch.set_default_device("cuda")``, or be in a block of ``torch.autocast``.
    """
    wanted = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    elsewhere = torch.get_default_device().type != "cpu"
    if not wanted and not elsewhere:
        return nullcontext()
    stack = ExitStack()
    for kind in wanted:
        stack.enter_context(torch.autocast(kind, enabled=False))
    if elsewhere:  # what does not say where it is to be is on the CPU
        stack.enter_context(torch.device("cpu"))
    return stack


def _connector(runner: ModelRunner) -> KVConnector | None:
    """What shares the runner's KV blocks with other engines, if that is asked for."""
    config = runner.config.kv_transfer
    if config is None:
        return None
    layers, modules = [*runner.caches], [runner.model]
    speculator = runner.speculator
    if speculator is not None:  # its own cache travels with the model's
        layers += speculator.caches
        modules += speculator.modules
    return KVConnector(
        config,
        BlockMover([blocks_of(cache) for layer in layers for cache in layer]),
        model_hash=model_hash(modules, (runner.model_config, len(layers))),
        dtype="-".join(dict.fromkeys(_dtypes(runner))),
        block_size=runner.config.block_size,
    )


def _dtypes(runner: ModelRunner) -> tuple[str, str]:
    """In what the model computes, and in what keys and values are kept."""
    computed = str(runner.dtype).removeprefix("torch.")
    return computed, "fp8_e4m3" if runner.spec.fp8_cache else computed


def _info(runner: ModelRunner) -> dict[str, Any]:
    dtype, kv_cache_dtype = _dtypes(runner)
    return {
        "model": runner.config.model,
        "backend": " and ".join(
            dict.fromkeys(each.description for each in runner.backends.values())
        ),
        "speculator": runner.speculator.name if runner.speculator else None,
        "num_speculative_tokens": (
            runner.speculator.num_speculative_tokens if runner.speculator else 0
        ),
        "speculative_config": (
            dataclasses.asdict(runner.config.speculative) if runner.config.speculative else None
        ),
        "kv_connector": runner.config.kv_transfer and runner.config.kv_transfer.kv_connector,
        "kv_role": runner.config.kv_transfer and runner.config.kv_transfer.kv_role,
        "device": str(runner.device),
        "tensor_parallel_size": runner.config.tensor_parallel_size,
        "sums_over_ranks": runner.ranks.way if runner.ranks else None,
        "async_scheduling": runner.config.async_scheduling,
        "cudagraph_mode": runner.cudagraph_mode.value,
        "dtype": dtype,
        "kv_cache_dtype": kv_cache_dtype,
        "num_blocks": runner.num_blocks,
        "block_size": runner.config.block_size,
        "max_model_len": runner.max_model_len,
        "vocab_size": runner.model_config.vocab_size,
        "eos_token_id": runner.model_config.eos_token_id,
    }


def _drawn_seed(engine_seed: int, arrival: int) -> int:
    """A seed for a request that has none: the same for the same engine seed and order."""
    text = f"{engine_seed} {arrival}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _as_int64(seed: int) -> int:
    """Any whole number as one that a tensor holds; equal ones stay equal."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
