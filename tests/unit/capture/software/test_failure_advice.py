"""What the software graph cannot do it says in words that name the way out."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from pytest_cudafork import assert_replay_equals_eager  # noqa: E402
from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from tests.support.capture_words import step_with_adam, words_of_failure  # noqa: E402


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}])
def test_adam_is_refused_as_torch_refuses_it_on_a_gpu(options: Any) -> None:
    text = words_of_failure(step_with_adam(**options))
    assert "[capture-failed] the step of Adam" in text
    assert "capturable=False" in text
    assert "make it with capturable=True; and with fused=True" in text
    assert "optimizer.step()" in text


def test_what_adam_is_told_to_do_helps() -> None:
    step = step_with_adam(fused=True, capturable=True)
    assert_replay_equals_eager(step, [torch.randn(4)], backend="software")


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_is_told_of_preserve_rng_state(reentrant: bool) -> None:
    weight = torch.randn(4, requires_grad=True)

    def fn(x: Any, **options: Any) -> Any:
        made = checkpoint(lambda w: (x * w).sin(), weight, use_reentrant=reentrant, **options)
        made.sum().backward()
        return made.detach()

    assert "preserve_rng_state=False" in words_of_failure(fn)
    graph = SoftwareBackend().capture(lambda: fn(torch.ones(4), preserve_rng_state=False))
    graph.replay()


def test_seeding_of_ones_own_is_not_told_of_checkpoints() -> None:
    seeds = iter(range(1, 100))
    text = words_of_failure(lambda x: (torch.manual_seed(next(seeds)), x)[1])
    assert "what to do: seed before the replay" in text


def test_a_python_counter_is_not_taken_for_unfilled_memory() -> None:
    calls = [0]

    def fn(x: Any) -> Any:
        calls[0] += 1
        return x + (1 if calls[0] > 3 else 0)

    text = words_of_failure(fn)
    assert "replay-differs" in text
    assert "torch.empty" not in text


def test_a_python_counter_beside_memory_of_torch_empty_is_not_either() -> None:
    calls = [0]

    def fn(x: Any) -> Any:
        calls[0] += 1
        made = torch.empty(4)
        return made.copy_(x + (1 if calls[0] > 3 else 0))

    text = words_of_failure(fn)
    assert "replay-differs" in text
    assert "uninitialized" not in text


def test_unfilled_memory_is_still_found() -> None:
    def fn(x: Any) -> Any:
        made = torch.empty(4)
        made[:2] = x[:2]
        return made

    assert "uninitialized-read" in words_of_failure(fn)
