"""Which backend a test runs with: its marker, and the option."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.capture import choose, marker
from pytest_cudafork.check.session import SESSION
from pytest_cudafork.settings import markers
from pytest_cudafork.settings.markers import MarkerError
from tests.support.sessions import needs_torch


def config(option: str | None) -> Any:
    """A configuration with this option; what it has to clean up is kept."""
    stash = pytest.Stash()
    session: Any = SimpleNamespace(settings=SimpleNamespace(graphs=option))
    stash[SESSION] = session
    cleanups: list[Any] = []
    return SimpleNamespace(
        stash=stash,
        cleanups=cleanups,
        add_cleanup=cleanups.append,
        pluginmanager=pytest.PytestPluginManager(),
    )


def request(option: str | None, **param: str) -> Any:
    return SimpleNamespace(config=config(option), **param)


def test_the_option_says_what_auto_means_for_the_session() -> None:
    session = config("software")
    marker.choose_for_session(session)
    try:
        assert choose.resolve("auto") == "software"
        assert session.pluginmanager.has_plugin("cudafork-stand-ins")
    finally:
        session.cleanups[0]()
    for option in (None, "auto"):
        session = config(option)
        marker.choose_for_session(session)
        session.cleanups[0]()
        assert not session.pluginmanager.has_plugin("cudafork-stand-ins")


def test_real_graphs_need_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker, "has_real_driver", lambda: False)
    with pytest.raises(pytest.UsageError, match="--cuda-fork-graphs=cuda: real graphs cannot"):
        marker.choose_for_session(config("cuda"))


@needs_torch
def test_the_fixture_gives_a_backend_and_lets_auto_mean_it() -> None:
    fixture = marker.backend_for_test(request(None, param="software"))
    assert next(fixture).name == "software"
    assert choose.resolve("auto") == "software"
    assert list(fixture) == []


@needs_torch
@pytest.mark.parametrize(
    ("option", "param", "words"),
    [
        ("cuda", {"param": "software"}, "runs with the software graph here"),
        (None, {"param": "cuda"}, "the cuda graph cannot be used here: no GPU"),
        ("cuda", {}, "the cuda graph cannot be used here: no GPU"),
    ],
)
def test_a_test_is_skipped_where_its_backend_cannot_be_used(
    option: str | None, param: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "why_no_gpu", lambda: "no GPU")
    with pytest.raises(pytest.skip.Exception, match=words):
        next(marker.backend_for_test(request(option, **param)))


@pytest.mark.parametrize(
    ("option", "param"), [(None, {}), ("software", {}), (None, {"param": "software"})]
)
def test_without_torch_the_fixture_says_how_to_get_it(
    option: str | None, param: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marker, "torch_is_missing", lambda: True)
    told = r'graph_backend and capture_pair need torch, .*: pip install "pytest-cudafork\[torch\]"'
    with pytest.raises(pytest.fail.Exception, match=told):
        next(marker.backend_for_test(request(option, **param)))


class Metafunc:
    """Notes how a test is parametrized."""

    def __init__(self, *marks: Any) -> None:
        self.definition = SimpleNamespace(
            iter_markers=lambda name=None: iter(
                [mark.mark for mark in marks if name in (None, mark.mark.name)]
            ),
            nodeid="t.py::test",
        )
        self.fixturenames: list[str] = []
        self.given: Any = None

    def parametrize(self, *args: Any, **kwargs: Any) -> None:
        self.given = args, kwargs


def test_there_is_a_test_for_each_backend_of_the_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        markers, "read_marks", lambda item: SimpleNamespace(graphs=("software", "cuda"))
    )
    metafunc: Any = Metafunc()
    marker.parametrize(metafunc)
    assert metafunc.fixturenames == ["graph_backend"]
    (name, values), options = metafunc.given
    assert (name, values) == ("graph_backend", ("software", "cuda"))
    assert options == {"indirect": True, "ids": ["software", "cuda"]}


def test_a_wrong_marker_is_told_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(item: Any) -> None:
        raise MarkerError("wrong")

    monkeypatch.setattr(markers, "read_marks", wrong)
    metafunc: Any = Metafunc()
    marker.parametrize(metafunc)
    assert metafunc.given is None
