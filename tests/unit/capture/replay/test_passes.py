"""Warm-up and capture of one descriptor, and what the state held around each."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import GraphNotJudgedError, GraphUsageError  # noqa: E402
from pytest_cudafork.capture.replay.factory import Factory  # noqa: E402
from pytest_cudafork.capture.replay.passes import Passes, Pieces  # noqa: E402
from pytest_cudafork.capture.software.backend import SoftwareBackend  # noqa: E402
from pytest_cudafork.capture.state import state_tree  # noqa: E402
from pytest_cudafork.capture.state.aliasing import Allowed  # noqa: E402
from pytest_cudafork.capture.story.findings import CheckLog  # noqa: E402
from tests.support.capture import Desc, iter_nothing  # noqa: E402
from tests.support.capture_pair import Runner  # noqa: E402

PLAN = "state.attn_metadata['layers.0'].plan"


def passes(create: Any, **options: Any) -> Passes:
    """Both passes, not run yet."""
    given: dict[str, Any] = {"mode": "FULL", "persistent": None, "allowed": Allowed(())}
    factory = Factory(create, Desc(4))
    return Passes(factory, SoftwareBackend(), log=CheckLog(), **{**given, **options})


def test_states_are_looked_at_around_both_forwards() -> None:
    runner = Runner()
    made = passes(runner.create, persistent={"x": runner.x})
    assert made.run()
    assert made.graph is not None
    paths = [change.path for change in made.changes]
    assert paths == [PLAN, PLAN.replace("plan", "ready")]
    values = [
        look.entries[PLAN].value is None
        for look in (made.before, made.after, made.at_capture, made.after_capture)
    ]
    assert values == [True, False, True, False]
    assert made.places == {"persistent['x']": runner.x.untyped_storage().data_ptr()}
    assert made.returns_tensors
    assert made.host_at_capture[PLAN.replace("plan", "ready")] is False


def test_a_capture_that_fails_leaves_no_graph() -> None:
    x = torch.ones(2)
    made = passes(lambda desc, warmup: ((lambda: x.sum().item() if not warmup else x), {}))
    assert not made.run()
    assert [found.check for found in made.log.findings] == ["host-sync"]


def test_a_state_for_one_pass_alone_is_refused() -> None:
    x = torch.ones(2)

    def create(desc: Any, warmup: bool) -> Any:
        return ((lambda: x * 2), {}) if warmup else (lambda: x * 2)

    with pytest.raises(GraphUsageError, match="a state for one pass and none for the other"):
        passes(create).run()


def test_a_body_that_does_not_run_is_refused() -> None:
    def create(desc: Any, warmup: bool) -> Any:
        return (lambda: iter_nothing()), {}

    with pytest.raises(GraphUsageError, match="has not run"):
        passes(create).run()


def test_a_path_that_no_state_has_is_refused() -> None:
    with pytest.raises(GraphUsageError, match=r"shared='state.plans' is no path in the states"):
        passes(Runner().create, allowed=Allowed(["state.plans"])).run()


def test_a_state_that_is_too_big_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_tree, "MOST_OBJECTS", 3)
    with pytest.raises(GraphUsageError, match="leave a part out with shared"):
        passes(Runner().create).run()
    x = [[torch.ones(1)] for _ in range(9)]
    alone = passes(lambda desc: lambda: x[0][0] * 2)
    alone.run()
    assert any("what the forward carries was not looked at" in note for note in alone.log.notes)


@pytest.mark.parametrize(
    ("persistent", "words"),
    [
        ("x", "give a dict from names to tensors"),
        ([1], "it holds no tensor"),
        ({"x": 3}, "it holds no tensor"),
    ],
)
def test_persistent_inputs_are_tensors_by_name(persistent: Any, words: str) -> None:
    with pytest.raises(GraphUsageError, match=words):
        passes(Runner().create, persistent=persistent).run()


def test_persistent_inputs_may_be_a_function_of_the_state() -> None:
    runner = Runner()
    made = passes(runner.create, persistent=lambda state: {"slots": state.slot_mappings, "n": None})
    made.run()
    assert list(made.persistent(made.captured)) == ["persistent['slots']['layers.0']"]


def test_what_the_user_says_of_the_contents_is_kept() -> None:
    def wrong(state: Any, desc: Any) -> None:
        raise AssertionError("of another batch")

    made = passes(Runner().create, belongs=wrong)
    made.run()
    assert made.complaint == "belongs(state, desc) says: 'of another batch'"
    made = passes(Runner().create, belongs=lambda state, desc: False)
    made.run()
    assert made.complaint.startswith("belongs(state, desc) is False for Desc(")


def test_a_state_that_the_factory_keeps_is_meanwhile_as_before_the_warmup() -> None:
    made = passes(Runner(keep=lambda warmup: 0).create)
    made.run()
    state = made.captured.state.attn_metadata["layers.0"]
    assert state.ready
    with made.fresh([]) as fresh:
        assert fresh.state.attn_metadata["layers.0"] is state
        assert not state.ready
    assert state.ready


def test_values_that_have_changed_since_the_capture() -> None:
    made = passes(Runner().create)
    made.run()
    with made.fresh([]) as fresh:
        assert made.changed_values(fresh) == ""
        fresh.state.attn_metadata["layers.0"].ready = 5
        assert "ready (False -> 5)" in made.changed_values(fresh)


def test_pieces_run_again_at_each_replay() -> None:
    calls = iter("abc")
    pieces = Pieces(lambda: next(calls), lambda: next(calls))
    assert (pieces.recording.result, pieces.recording.nodes) == ("a", None)
    pieces.replay()
    assert pieces.recording.result == "b"
    pieces.reset()


@pytest.mark.parametrize(
    ("words", "error"), [("no CUDA-capable device", GraphNotJudgedError), ("mine", RuntimeError)]
)
def test_pieces_need_a_gpu(words: str, error: type[Exception]) -> None:
    def first() -> None:
        raise RuntimeError(f"{words} is detected")

    with pytest.raises(error, match=words) as caught:
        Pieces(first, first)
    assert type(caught.value) is error
