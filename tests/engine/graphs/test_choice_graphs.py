"""Greedy tokens come from a graph of their own, and are those that come without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.engine_core import EngineCore
from tests.engine.support.engine import COUNT, GREEDY, PROMPTS, SAMPLED, plain_tokens, run
from tests.engine.whole.test_graphs import core_of

MIXED = {name: (GREEDY, SAMPLED)[number % 2] for number, name in enumerate(PROMPTS)}


def watched(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many choices were replayed, and how many logits computed, from now on."""
    graphs = core.runner.choice_graphs
    assert graphs is not None, "its capture has failed: see the warning"
    counts = {"replayed": 0, "computed": 0}

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            counts[name] += 1
            return function(*args)

        return counted

    model = core.runner.model
    monkeypatch.setattr(graphs.manager, "run", counting("replayed", graphs.manager.run))
    monkeypatch.setattr(model, "compute_logits", counting("computed", model.compute_logits))
    return counts


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["one by one", "asynchronous"])
def test_steps_of_greedy_requests_compute_no_logits_outside_of_graphs(
    folder: str, monkeypatch: pytest.MonkeyPatch, *, async_scheduling: bool
) -> None:
    core = core_of(folder, "FULL", async_scheduling=async_scheduling)
    counts = watched(core, monkeypatch)
    core.add_request("one", PROMPTS["own-8"], GREEDY)
    tokens, _ = run(core)
    assert tokens["one"] == plain_tokens(folder, PROMPTS["own-8"], COUNT)
    assert counts == {"replayed": COUNT - 1, "computed": 1}


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["one by one", "asynchronous"])
@pytest.mark.parametrize("mode", ["FULL", "FULL_AND_PIECEWISE"])
def test_greedy_and_sampled_requests_come_and_go(
    folder: str, monkeypatch: pytest.MonkeyPatch, mode: str, *, async_scheduling: bool
) -> None:
    core = core_of(folder, mode, async_scheduling=async_scheduling, max_num_seqs=4)
    counts = watched(core, monkeypatch)
    for name, prompt in PROMPTS.items():
        core.add_request(name, prompt, MIXED[name])
    for name, tokens in run(core)[0].items():
        assert tokens == plain_tokens(folder, PROMPTS[name], COUNT, MIXED[name]), name
    assert counts["computed"] > 0
    core.add_request("alone", PROMPTS["alike-5"], GREEDY)
    before = counts["replayed"]
    assert run(core)[0]["alone"] == plain_tokens(folder, PROMPTS["alike-5"], COUNT)
    assert counts["replayed"] - before == COUNT - 1


def test_log_probabilities_are_computed_without_the_graph(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = core_of(folder, "FULL")
    counts = watched(core, monkeypatch)
    asked = SamplingParams(max_tokens=COUNT, logprobs=1)
    core.add_request("asked", PROMPTS["own-8"], asked)
    core.add_request("not asked", PROMPTS["alike-5"], GREEDY)
    lines = []
    while core.has_unfinished():
        lines += [line for output in core.step() for line in output.logprobs]
    assert len(lines) == COUNT
    assert counts["replayed"] == 0


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["one by one", "asynchronous"])
def test_a_row_that_is_not_finite_ends_its_request_alone(
    folder: str, *, async_scheduling: bool
) -> None:
    core = core_of(folder, "FULL", async_scheduling=async_scheduling)
    right = {name: plain_tokens(folder, PROMPTS[name], COUNT) for name in ("own-8", "own-33")}
    elsewhere = {*PROMPTS["own-8"], *PROMPTS["own-33"], *right["own-33"]}
    bad = next(token for token in right["own-8"][2:] if token not in elsewhere)
    core.runner.model.embed_tokens.weight.data[bad] = torch.nan
    for name in right:
        core.add_request(name, PROMPTS[name], GREEDY)
    tokens, last = run(core)
    assert tokens["own-33"] == right["own-33"]
    assert last["own-33"].error is None
    assert tokens["own-8"] == right["own-8"][: right["own-8"].index(bad) + 1]
    assert "the model gave NaN or infinity" in str(last["own-8"].error)


def test_steps_go_on_without_it_where_its_capture_fails(
    folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("it cannot be captured")

    with monkeypatch.context() as patch:
        patch.setattr("sample_engine.graphs.choice_graphs.ops.greedy", fails)
        core = core_of(folder, "FULL")
    assert core.runner.choice_graphs is None
    assert "Sampling, verification and drafts run without a graph of their own" in caplog.text
    assert "it cannot be captured" in caplog.text
    core.add_request("one", PROMPTS["own-8"], GREEDY)
    assert run(core)[0]["one"] == plain_tokens(folder, PROMPTS["own-8"], COUNT)
