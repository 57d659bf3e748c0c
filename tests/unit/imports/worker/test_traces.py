"""What an import reads of the environment, and what it leaves open."""

from __future__ import annotations

import collections.abc
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.imports.values.left_behind import WHOLE, Traces
from pytest_cudafork.imports.worker import traces


def traces_of(work: Callable[[], Any]) -> Traces:
    watch = traces.TraceWatch()
    watch.begin()
    try:
        work()
    finally:
        watch.end()
    return Traces.from_plain(watch.found())


def run(tmp_path: Path, text: str) -> Callable[[], Any]:
    """Return what runs the text as a module of no installed package would run."""
    file = tmp_path / "mypkg.py"
    file.write_text(text)
    return lambda: exec(compile(text, str(file), "exec"), {})


def names_of(found: Traces) -> list[str]:
    return [read.name for read in found.environment]


@pytest.mark.parametrize(
    "text",
    [
        "import os; os.getenv('CUDAFORK_A')",
        "import os; os.environ.get('CUDAFORK_A', 'x')",
        "import os; 'CUDAFORK_A' in os.environ",
        "import os\ntry: os.environ['CUDAFORK_A']\nexcept KeyError: pass",
        "import os; os.environb.get(b'CUDAFORK_A')",
        "import os; os.path.expandvars('$CUDAFORK_A')",
        "import os; os.environ.setdefault('CUDAFORK_A', 'x'); os.environ.pop('CUDAFORK_A')",
    ],
    ids=["getenv", "get", "in", "item", "bytes", "through the library", "setdefault"],
)
def test_each_way_to_read_a_variable_is_seen_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.delenv("CUDAFORK_A", raising=False)
    found = traces_of(run(tmp_path, f"\n{text}"))
    (read,) = [each for each in found.environment if each.name == "CUDAFORK_A"]
    line = 3 if "try" in text else 2
    assert (read.where, read.is_set) == (f"{tmp_path}/mypkg.py:{line}", False)


@pytest.mark.parametrize(
    "text",
    ["dict(os.environ)", "{**os.environ}", "os.environ.copy()", "list(os.environ.items())"],
)
def test_a_copy_of_the_environment_is_one_read_of_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("CUDAFORK_A", "1")
    found = traces_of(run(tmp_path, f"import os\n{text}\nos.environ['CUDAFORK_A']"))
    assert names_of(found) == [WHOLE, "CUDAFORK_A"]
    assert found.environment[1].is_set


def test_reads_of_the_library_alone_and_of_others_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    get = type(os.environ).__getitem__
    found = traces_of(lambda: None)
    assert found == Traces()
    assert type(os.environ).__getitem__ is get, "and the class is as it was"
    os.getenv("CUDAFORK_LATER")
    assert names_of(found) == []


def test_a_key_of_the_wrong_type_fails_as_ever(tmp_path: Path) -> None:
    text = "import os\ntry: os.environ[3]\nexcept TypeError: pass\nelse: 1 / 0"
    assert traces_of(run(tmp_path, text)) == Traces()


def test_descriptors_that_stay_open_are_told_by_what_they_lead_to(tmp_path: Path) -> None:
    kept: list[Any] = []

    def work() -> None:
        kept.append(open(tmp_path / "x.log", "w"))  # noqa: SIM115
        kept.append(socket.socket())
        open(tmp_path / "x.log").close()

    try:
        found = traces_of(work)
    finally:
        for each in kept:
            each.close()
    assert found.descriptors == (str(tmp_path / "x.log"), "socket")


def test_threads_of_python_are_no_native_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait)
    try:
        found = traces_of(thread.start)
        assert found.native_threads == ()
        watch = traces.TraceWatch()
        watch._threads.clear()
        watch._python_threads = list
        assert len(watch.found()["native_threads"]) >= 2
    finally:
        go_on.set()
        thread.join()


def test_the_methods_of_mappings_are_where_they_are_looked_for() -> None:
    frame = sys._getframe()
    assert traces._user_of(frame) is frame
    assert collections.abc.Mapping.get.__code__.co_filename in traces._MAPPING_FILES
