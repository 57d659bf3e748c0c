"""What the checks of a pair tell each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.pair.evidence import Evidence, Suspects  # noqa: E402
from pytest_cudafork.capture.replay.factory import Factory  # noqa: E402
from pytest_cudafork.capture.replay.passes import Passes  # noqa: E402
from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.capture.state.aliasing import Allowed  # noqa: E402
from pytest_cudafork.capture.story.findings import CheckLog  # noqa: E402
from tests.support.capture import Desc  # noqa: E402
from tests.support.capture_pair import Runner  # noqa: E402


def evidence(create: Any, *, vary: tuple[Any, ...] = ()) -> Evidence:
    """The evidence of two passes that have run."""
    log = CheckLog()
    backend = SoftwareBackend()
    passes = Passes(Factory(create, Desc(4)), backend, "FULL", None, Allowed(()), log)
    passes.run()
    return Evidence(passes, log, SimpleNamespace(vary=vary))  # type: ignore[arg-type]


def test_what_was_initialized_and_the_line_that_did_it() -> None:
    pair = evidence(Runner().create)
    paths = [change.path for change in pair.initialized]
    assert paths == [
        "state.attn_metadata['layers.0'].plan",
        "state.attn_metadata['layers.0'].ready",
    ]
    assert "capture_pair.py:" in pair.line_that_set(paths)
    assert pair.line_that_set(["state.nothing"]) == ""


def test_looking_for_a_line_leaves_memory_as_it_was() -> None:
    count, plans = torch.zeros(1), dict[str, Any]()

    def create(desc: Desc, warmup: bool) -> Any:
        state = {"count": count}

        def forward() -> Any:
            plans.setdefault("plan", torch.ones(1))
            return count.add_(1) * plans["plan"]

        return forward, state

    pair = evidence(create)
    before = count.clone()
    plans["plan"] = torch.full((1,), 2.0)
    assert pair.line_that_set_beside().startswith(__file__)
    assert torch.equal(count, before)


def test_a_line_that_cannot_be_found_costs_the_line_only() -> None:
    pair = evidence(Runner().create)
    pair.passes.factory.create = None
    assert pair.line_that_set(["state.attn_metadata['layers.0'].plan"]) == ""


def test_advice_names_the_call_that_the_factory_takes() -> None:
    assert "create_forward_fn(desc, warmup=False)" in evidence(Runner().create).separate
    x = torch.ones(2)
    assert "create_forward_fn(desc)" in evidence(lambda desc: lambda: x * 2).separate


def test_suspects_need_a_second_sign() -> None:
    pair = evidence(Runner().create)
    assert not pair.suspects
    assert not pair.suspects_are_wrong
    pair.replays_differ = True
    assert pair.suspects_are_wrong


@pytest.mark.parametrize("vary", [(), (int,)])
def test_a_forward_without_a_state_is_judged_by_what_it_carries(vary: tuple[Any, ...]) -> None:
    x = torch.ones(2)
    pair = evidence(lambda desc: lambda: x * 2, vary=vary)
    assert not pair.suspects_are_wrong
    pair.suspects.aliases.append(None)  # type: ignore[arg-type]
    assert pair.suspects_are_wrong is not bool(vary)


def test_suspects_are_of_two_kinds() -> None:
    suspects = Suspects()
    assert not suspects
    suspects.lazy.append(None)  # type: ignore[arg-type]
    assert suspects
