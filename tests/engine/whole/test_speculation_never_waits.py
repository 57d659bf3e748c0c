"""One copy to the host ends a step: before it nothing waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.batch.scheduled_batch import ScheduledBatch, StepResult
from sample_engine.engine_core import EngineCore
from sample_engine.speculate import step
from tests.engine.support.engine import (
    GREEDY,
    PROMPTS,
    SAMPLED,
    generate,
    make_core,
)
from tests.engine.support.speculation import EAGLE, NGRAM
from tests.engine.support.waiting import set_sync_mode

WAITS = {"_local_scalar_dense", "equal", "is_nonzero", "masked_select", "nonzero", "_unique2"}
BOTH = pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
RULES = pytest.mark.parametrize("rule", ["probabilistic", "strict"])


class NoWaiting(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed here
    """Refuses what would wait for a device, were the tensors on one."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        name = func._schema.name.removeprefix("aten::")
        by_mask = name.startswith("index") and any(
            isinstance(each, torch.Tensor) and each.dtype == torch.bool
            for each in (args[1] if isinstance(args[1], (list, tuple)) else ())
        )
        assert name not in WAITS, f"{name} waits for the device"
        assert not by_mask, f"the shape of {name} depends on data"
        return func(*args, **(kwargs or {}))


def test_the_mode_of_this_test_notices_what_waits() -> None:
    numbers = torch.arange(3)
    for waits in (
        lambda: numbers[0].item(),
        lambda: bool(numbers.sum()),
        lambda: numbers[numbers > 1],
        lambda: numbers.nonzero(),
    ):
        with NoWaiting(), pytest.raises(AssertionError, match=r"waits for|depends on data"):
            waits()


@BOTH
@RULES
@pytest.mark.parametrize("backend", ["reference", "lazy_plan"])
def test_verification_and_drafts_never_wait(
    folder: str,
    params: SamplingParams,
    rule: str,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of decoding: a chunk of a prompt is computed by lengths that the host knows."""
    speculative = {**EAGLE, "rejection_sample_method": rule}
    core = make_core(folder, speculative_config=speculative, attention_backend=backend)
    steps = []
    finish, read_back = step.finish_step, step._read_back

    def watched(batch: ScheduledBatch, *rest: Any) -> StepResult:
        if any(part.start == 0 for part in batch.requests):
            return finish(batch, *rest)
        with NoWaiting():
            return finish(batch, *rest)

    def read_outside(*arguments: Any) -> StepResult:
        steps.append(1)
        with torch.utils._python_dispatch._disable_current_modes():
            return read_back(*arguments)

    monkeypatch.setattr("sample_engine.model_runner.finish_step", watched)
    monkeypatch.setattr(step, "_read_back", read_outside)
    generate(core, PROMPTS, params)
    assert len(steps) > 5


# On a GPU


@pytest.fixture
def sync_mode() -> Iterator[Callable[[str], None]]:
    """Set what torch does when something waits for the GPU; put back afterwards."""
    before = torch.cuda.get_sync_debug_mode()
    yield set_sync_mode
    set_sync_mode(before)


@pytest.mark.gpu
@BOTH
@RULES
@pytest.mark.parametrize("speculative", [NGRAM, EAGLE], ids=["ngram", "eagle"])
@pytest.mark.parametrize("backend", ["triton", "lazy_plan"])
def test_a_step_waits_for_the_gpu_only_at_its_end(
    folder: str,
    params: SamplingParams,
    rule: str,
    speculative: dict[str, Any],
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
    sync_mode: Callable[[str], None],
) -> None:
    config = {**speculative, "rejection_sample_method": rule}
    core = gpu_core(folder, backend, config)
    generate(core, PROMPTS, params)  # kernels are compiled
    read_back, run_step = step._read_back, core.runner.run

    def read_freely(*arguments: Any) -> StepResult:
        sync_mode("default")
        return read_back(*arguments)

    def guarded(batch: ScheduledBatch) -> StepResult:
        sync_mode("error")
        try:
            return run_step(batch)
        finally:
            sync_mode("default")

    monkeypatch.setattr(step, "_read_back", read_freely)
    monkeypatch.setattr(core.runner, "run", guarded)
    generate(core, PROMPTS, params)
    core.shutdown()


@pytest.mark.gpu
@BOTH
@pytest.mark.parametrize("speculative", [NGRAM, EAGLE], ids=["ngram", "eagle"])
@pytest.mark.parametrize("backend", ["reference", "triton", "lazy_plan", "flash"])
@pytest.mark.parametrize("num_blocks", [200, 8], ids=["roomy", "preempting"])
def test_a_gpu_makes_the_tokens_that_it_makes_without_speculation(
    folder: str,
    params: SamplingParams,
    speculative: dict[str, Any],
    backend: str,
    num_blocks: int,
) -> None:
    config = {**speculative, "rejection_sample_method": "strict"}
    plain = gpu_core(folder, backend, None)
    expected = generate(plain, PROMPTS, params)
    core = gpu_core(folder, backend, config, num_blocks=num_blocks)
    assert generate(core, PROMPTS, params) == expected
    assert generate(core, PROMPTS, params) == expected, "with the prefixes cached"
    plain.shutdown()
    core.shutdown()


def gpu_core(
    folder: str, backend: str, speculative: dict[str, Any] | None, **settings: Any
) -> EngineCore:
    """Float32: with bfloat16 two tokens are often equal, and batches of other sizes differ."""
    from sample_engine.errors import BackendUnavailableError

    values: dict[str, Any] = {"block_size": 16, "device": "cuda", "dtype": "float32", **settings}
    try:
        return make_core(
            folder, attention_backend=backend, speculative_config=speculative, **values
        )
    except BackendUnavailableError as error:
        pytest.skip(str(error))
