"""The words in which a touch and a fork are told, laid out line by line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.observe.story.touch import Frame, Touch
from pytest_cudafork.observe.story.words import (
    fork_line,
    headline,
    indent,
    nobodys_line,
    touch_lines,
    when_of,
)

FUNCTION, BODY = 3, 0
SITE = "/venv/lib/python3.11/site-packages"


def touch_at(stack: list[list[Any]], **fields: Any) -> Touch:
    """Return a touch with this stack, innermost frame first."""
    record = {"k": "touch", "id": "1-1", "pid": 7, "t": 1, "entry": "cuInit", "stack": stack}
    return Touch.from_record({**record, **fields})


def test_the_headline_names_the_library_where_there_is_no_stack() -> None:
    told = headline(touch_at([], library="/opt/libnative.so"))
    assert told == "cuInit called by libnative.so (no Python stack could be had)"
    assert "unknown code" in headline(touch_at([]))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"test": "test_it.py::test_a (call)"}, "in test_it.py::test_a (call)"),
        ({"phase": "collect test_it.py"}, "while test_it.py was collected"),
        ({"phase": "collect"}, "while the suite was collected"),
        ({"phase": "start"}, "while pytest started (conftest or plugin)"),
        ({}, "outside any test"),
    ],
)
def test_a_touch_says_when_it_happened(fields: dict[str, str], expected: str) -> None:
    assert when_of(touch_at([], **fields)) == f"process 7, {expected}"


def test_a_call_shows_its_way_in_and_out(tmp_path: Path) -> None:
    path = tmp_path / "engine.py"
    path.write_text("def probe():\n    return ask()\n")
    stack = [
        [f"{SITE}/torch/cuda/__init__.py", 10, "_lazy_init", FUNCTION],
        [f"{SITE}/torch/cuda/__init__.py", 20, "init", FUNCTION],
        [str(path), 2, "probe", FUNCTION],
        ["/usr/lib/python3.11/functools.py", 1, "wrapper", FUNCTION],
        ["/src/serve.py", 5, "serve", FUNCTION],
        [f"{SITE}/_pytest/python.py", 159, "pytest_pyfunc_call", FUNCTION],
        ["/src/never.py", 5, "never_told", FUNCTION],
    ]
    text = "\n".join(touch_lines(touch_at(stack, library="/x/libtorch.so")))
    assert "    > return ask()" in text
    assert "touched CUDA by cuInit (called by libtorch.so) in process 7, outside any test" in text
    way = ["torch/cuda/__init__.py:20 in init", "torch/cuda/__init__.py:10 in _lazy_init"]
    assert text.index("which called:") < text.index(way[0]) < text.index(way[1])
    assert "  called from:\n    /src/serve.py:5 in serve\n  what to do:" in text
    assert "never_told" not in text


def test_a_long_way_in_loses_its_middle() -> None:
    inner = [[f"{SITE}/torch/x.py", line, "f", FUNCTION] for line in range(10)]
    text = "\n".join(touch_lines(touch_at([*inner, ["/src/a.py", 1, "probe", FUNCTION]])))
    assert "    ... 4 more calls ..." in text
    assert "torch/x.py:9 in f" in text
    assert "torch/x.py:0 in f" in text
    assert "torch/x.py:5 in f" not in text


def test_advice_is_left_out_where_it_is_not_wanted() -> None:
    touch = touch_at([["/src/a.py", 1, "probe", FUNCTION]])
    assert not any("what to do" in line for line in touch_lines(touch, advice=False))


def test_a_fork_is_told_by_the_line_outside_multiprocessing(tmp_path: Path) -> None:
    path = tmp_path / "launch.py"
    path.write_text("process.start()\n")
    frames = [
        Frame("/usr/lib/python3.11/multiprocessing/popen_fork.py", 66, "_launch", FUNCTION),
        Frame(str(path), 1, "launch", FUNCTION),
    ]
    line, source = fork_line(frames).split("\n")
    assert line.endswith("launch.py:1 in launch")
    assert source == "    > process.start()"
    assert fork_line([]) == "unknown code"


def test_lines_with_breaks_are_moved_as_a_whole() -> None:
    assert indent(["a\nb", "c"], "> ") == ["> a", "> b", "> c"]


def test_where_no_line_is_the_users_the_story_says_so() -> None:
    stack = [[f"{SITE}/_pytest/runner.py", 9, "teardown_exact", FUNCTION]]
    lines = touch_lines(touch_at(stack, test="test_a.py::test_a (teardown)"), advice=False)
    assert lines[1].startswith("  no line of yours is in the stack: pytest calls")
    assert lines[2].endswith("in test_a.py::test_a (teardown)")
    mine = touch_at([*stack, ["/src/conftest.py", 9, "f", FUNCTION]])
    assert nobodys_line(mine.frames) == nobodys_line(()) == []
