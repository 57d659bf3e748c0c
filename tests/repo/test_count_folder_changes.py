"""The way through the package: what is recorded, and what of it counts."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from tests.repo.tools_support import load


@pytest.fixture(scope="module")
def folders() -> ModuleType:
    return load("count_folder_changes")


def test_the_main_line_has_each_function_once_and_no_leaves(folders: ModuleType) -> None:
    calls = [
        folders.Call(*each)
        for each in [
            (1, 0, "plugin.py", "hook"),
            (2, 1, "values.py", "make"),  # calls nothing of another module
            (3, 2, "values.py", "check"),
            (4, 1, "isolate/parent.py", "run"),
            (5, 4, "isolate/wire.py", "send"),
            (6, 4, "isolate/child.py", "wait"),
            (7, 6, "isolate/wire.py", "receive"),
            (8, 4, "isolate/child.py", "wait"),  # a loop
            (9, 8, "plugin.py", "report"),  # only now
            (10, 9, "values.py", "make"),
            (11, 1, "settings/options.py", "ask"),  # known by name
            (12, 11, "observe/driver.py", "look"),
            (13, 2, "compat/pytest_internals.py", "ask"),
        ]
    ]
    line = folders.main_line(calls)
    assert [call.function for call in line] == ["hook", "run", "wait", "report"]
    assert folders.count(line, lambda call: call.folder) == folders.Count(2, 1, 2)
    assert folders.count(line, lambda call: call.file) == folders.Count(3, 1, 3)
    whole = folders.main_line(calls, whole=True)
    assert [call.number for call in whole] == [1, 2, 3, 4, 5, 6, 7, 9]
    assert folders.figures({"pytest": calls, "child": calls}, whole=False)["folder_changes"] == 4


def test_the_recorder_notes_calls_of_the_package_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorder = load("call_recorder")
    monkeypatch.setattr(recorder, "_CALLS", str(tmp_path))
    package = {"foreign": lambda function: function()}
    text = """
    class Body:
        def inner(self): return [self for _ in (1,)]
    def outer(): foreign(Body().inner)
    """
    file = str(tmp_path / "package" / "deep" / "a.py")
    module = compile(textwrap.dedent(text), file, "exec")
    made = recorder._Recorder(str(tmp_path / "package"))
    before = sys.getprofile()
    sys.setprofile(made.profile)
    try:
        exec(module, package)
        package["outer"]()  # type: ignore[call-arg]
    finally:
        sys.setprofile(before)
    (written,) = tmp_path.glob("*.jsonl")
    lines = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
    assert [line[1:3] for line in lines] == [[0, "deep/a.py"], [lines[0][0], "deep/a.py"]]
    assert [line[3].rpartition(".")[2] for line in lines] == ["outer", "inner"]
