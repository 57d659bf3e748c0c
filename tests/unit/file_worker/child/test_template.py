"""What makes a process one that must not be forked, and who is named for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_cudafork.file_worker.child import template
from pytest_cudafork.observe.driver import probe
from pytest_cudafork.process.forking import freeze_before_fork
from pytest_cudafork.process.protocol.server_messages import CannotFork, ServerSettings


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("preloaded_"):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def threads_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the threads that libraries have in this process since earlier tests."""
    before = set(threading.enumerate()) - {threading.main_thread()}
    shown = SimpleNamespace(
        enumerate=lambda: [one for one in threading.enumerate() if one not in before],
        main_thread=threading.main_thread,
    )
    monkeypatch.setattr(template, "threading", shown)


def no_cuda(monkeypatch: pytest.MonkeyPatch, verdict: probe.Verdict) -> None:
    state = probe.CudaState(verdict, probe.Driver.UNKNOWN, None, None, "a test says so")
    monkeypatch.setattr(template, "current_state", lambda: state)


class Server:
    """A fork server that notes what its preparation does."""

    def __init__(self, *preload: str) -> None:
        self.settings = ServerSettings(data={"preload": list(preload)})
        self.refused: list[CannotFork] = []
        self.served: list[template.Template] = []

    def ready(self, why_not: CannotFork) -> None:
        """Take note that it cannot be forked."""
        self.refused.append(why_not)

    def serve(self, prepared: template.Template) -> None:
        """Take note that it can."""
        self.served.append(prepared)


def test_a_module_that_is_in_order_is_served(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_cuda(monkeypatch, probe.Verdict.CLEAN)
    monkeypatch.setattr(freeze_before_fork, "freeze", lambda: None)
    (modules / "preloaded_well.py").write_text("VALUE = 1")
    server = Server("preloaded_well")
    template.prepare(cast("Any", server))
    assert server.refused == []
    server.served[0].begin_child(-1)
    assert "preloaded_well" in sys.modules


@pytest.mark.parametrize(
    ("text", "words"),
    [("import no_such_library", "No module named 'no_such_library'"), ("exit(3)", "SystemExit: 3")],
    ids=["raises", "exits"],
)
def test_one_that_cannot_be_imported_is_shown_with_its_traceback(
    modules: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    no_cuda(monkeypatch, probe.Verdict.CLEAN)
    (modules / "preloaded_badly.py").write_text(text)
    server = Server("preloaded_badly")
    template.prepare(cast("Any", server))
    (why_not,) = server.refused
    assert (why_not.kind, why_not.path) == (template.IMPORT, "preloaded_badly")
    assert words in why_not.text
    assert not server.served


def test_one_that_leaves_a_thread_is_named_with_it(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_cuda(monkeypatch, probe.Verdict.CLEAN)
    go_on = threading.Event()
    monkeypatch.setattr(threading, "cudafork_go_on", go_on, raising=False)
    (modules / "preloaded_threads.py").write_text(
        "import threading\n"
        "threading.Thread(target=threading.cudafork_go_on.wait, name='exporter').start()\n"
    )
    try:
        why_not = template.import_and_look("preloaded_threads")
    finally:
        go_on.set()
    assert why_not is not None
    assert (why_not.kind, why_not.path) == (template.THREADS, "preloaded_threads")
    assert "exporter" in why_not.text


def test_one_that_initializes_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    no_cuda(monkeypatch, probe.Verdict.INITIALIZED)
    why_not = template.import_and_look("json")
    assert why_not == CannotFork("json", template.CUDA, "CUDA is initialized: a test says so")
    server = Server("json")
    template.prepare(cast("Any", server))
    assert [one.path for one in server.refused] == [""], "before any module"
