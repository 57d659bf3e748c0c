"""Code that ``torch.jit`` traces while captures are looked at."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from pytest_cudafork.capture.record.history import History  # noqa: E402
from pytest_cudafork.capture.record.tracing import tracing_let_pass  # noqa: E402
from tests.support.captures import looking  # noqa: E402

HALF = 1.5


@pytest.fixture(autouse=True)
def _no_word_of_age() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is on its way out
        yield


@pytest.mark.parametrize(
    "traced",
    [
        lambda x: torch.jit.trace(lambda x: x * HALF, (x,)),
        lambda x: torch.jit.trace_module(Halves(), {"forward": (x,)}),
    ],
    ids=["trace", "trace_module"],
)
def test_a_number_in_what_is_traced_is_no_error(traced: Callable[[Any], Any]) -> None:
    x = torch.ones(2, dtype=torch.int64)
    with looking():
        made = traced(x)
        assert made(x).tolist() == [1.5, 1.5]
        assert made(x).dtype == torch.float32


class Halves(torch.nn.Module):  # type: ignore[misc]  # torch is not followed
    """Multiplies by a number of Python."""

    def forward(self, x: Any) -> Any:
        """Return the product."""
        return x * HALF


def test_what_was_known_of_memory_is_forgotten_as_traced_code_may_write_it() -> None:
    history, x, plan = History(), torch.ones(2), torch.tensor([1, 2])

    def writes(x: Any) -> Any:
        plan.add_(1)
        return x * HALF

    memory = history.meet(plan)
    assert memory is not None
    history.keep(memory, plan)
    with tracing_let_pass(history):
        torch.jit.trace(writes, (x,), check_trace=False)
    assert memory is history.memories.of(plan)
    assert (memory.live, memory.version) == (False, 1)


def test_another_thread_traces_as_it_would() -> None:
    history, x, made = History(), torch.ones(2), []
    before = history.at
    with tracing_let_pass(history):
        thread = threading.Thread(
            target=lambda: made.append(torch.jit.trace(lambda x: x * HALF, (x,))), daemon=True
        )
        thread.start()
        thread.join()
    assert made[0](x).tolist() == [1.5, 1.5]
    assert history.at == before
