"""The fixtures hand over to the part that does the work."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork import fixtures
from pytest_cudafork.call import run
from pytest_cudafork.capture import marker
from pytest_cudafork.check import phantom_fixture, state
from pytest_cudafork.check.session import SESSION
from pytest_cudafork.settings import environment

torch: Any = pytest.importorskip("torch")
graph_pair: Any = importlib.import_module("pytest_cudafork.capture.pair.capture_pair")
cleanup: Any = importlib.import_module("pytest_cudafork.capture.replay.cleanup")


def behind(fixture: Any) -> Any:
    """Return the function behind a fixture."""
    return getattr(fixture, "__wrapped__", None) or fixture._get_wrapped_function()


def request_of(watch: Any = None) -> Any:
    """Return the request of a test, in a session with this watch."""
    stash = pytest.Stash()
    session: Any = SimpleNamespace(watch=watch)
    stash[SESSION] = session
    return SimpleNamespace(config=SimpleNamespace(stash=stash))


@pytest.mark.parametrize(
    ("name", "method"),
    [("run_forked", "fork"), ("run_spawned", "spawn"), ("run_forkserver", "forkserver")],
)
def test_each_runner_has_its_method(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "runner", lambda config, method: (config, method))
    request = request_of()
    assert behind(getattr(fixtures, name))(request) == (request.config, method)


def test_the_state_is_the_observers_where_there_is_one() -> None:
    assert behind(fixtures.cuda_state)(request_of()) is state.current_state
    watch = SimpleNamespace(observer=SimpleNamespace(state="its state"))
    assert behind(fixtures.cuda_state)(request_of(watch)) == "its state"


def test_a_test_is_clean_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, object, str]] = []
    monkeypatch.setattr(state, "require_clean", lambda *args: asked.append(args))
    watch = SimpleNamespace(observer="observer")
    fixture: Iterator[None] = behind(fixtures.cuda_uninitialized)(request_of(watch), lambda: "now")
    next(fixture)
    assert asked == [("now", "observer", "before the test")]
    assert next(fixture, "over") == "over"
    assert asked[1:] == [("now", "observer", "during the test")]


def test_the_phantom_is_shown_for_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phantom_fixture, "phantom_for", lambda session: iter([session]))
    request = request_of()
    assert list(behind(fixtures.phantom_cuda)(request)) == [request.config.stash[SESSION]]


def test_the_backend_is_the_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker, "backend_for_test", lambda request: iter([request]))
    request = request_of()
    assert list(behind(fixtures.graph_backend)(request)) == [request]


def test_a_pair_uses_the_backend_of_the_test_and_is_let_go_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_go: list[Any] = []

    class Graph:
        """Can be referred to weakly."""

    graph = Graph()
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def check(*args: Any, **kwargs: Any) -> Any:
        calls.append((args, kwargs))
        return SimpleNamespace(graph=graph)

    monkeypatch.setattr(graph_pair, "capture_pair", check)
    monkeypatch.setattr(cleanup, "release", let_go.append)
    backend: Any = SimpleNamespace(name="software")
    fixture: Any = behind(fixtures.capture_pair)(backend)
    call = next(fixture)
    call("create", "desc", mode="FULL")
    call("create", "desc", backend="cuda")
    assert [kwargs["backend"] for _, kwargs in calls] == ["software", "cuda"]
    assert calls[0][0] == ("create", "desc")
    assert next(fixture, "over") == "over"
    assert let_go == [graph, graph]


def test_patches_of_children_lie_in_a_folder_of_the_session_and_end_with_the_test(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(environment.PATCHES, raising=False)
    monkeypatch.setenv("OF_CHILD_PATCH", "before")
    request = SimpleNamespace(getfixturevalue={"tmp_path_factory": tmp_path_factory}.get)
    fixture: Iterator[Any] = behind(fixtures.child_patch)(request)
    next(fixture).setenv("OF_CHILD_PATCH", "patched")
    folder = Path(os.environ[environment.PATCHES])
    of_the_test = folder.parent
    assert of_the_test.parent == tmp_path_factory.getbasetemp()
    assert os.environ["OF_CHILD_PATCH"] == "patched"
    assert next(fixture, "over") == "over"
    assert os.environ["OF_CHILD_PATCH"] == "before"
    assert not of_the_test.exists()
