"""Which line of a stack is the user's, and how a place is shown."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from tests.support.sessions import needs_torch

pytestmark = needs_torch

torch = pytest.importorskip("torch")

from pytest_cudafork import ReplayDiffersError  # noqa: E402
from pytest_cudafork import assert_replay_equals_eager as compare  # noqa: E402
from pytest_cudafork.capture.interface.lines import (  # noqa: E402
    is_foreign,
    line_at_work,
    line_of,
    shown,
)
from pytest_cudafork.capture.story.findings import source_of  # noqa: E402


def test_a_line_of_an_installed_file_is_not_read_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "lib" / "site-packages" / "oddlib"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    (installed / "ops.py").write_text("def f(x):\n    return x + x.sum().item()\n")
    checkout = tmp_path / "checkout"
    (checkout / "oddlib").mkdir(parents=True)
    (checkout / "oddlib" / "ops.py").write_text("\nUNRELATED = 'a line of the checkout'\n")
    monkeypatch.syspath_prepend(installed.parent)
    monkeypatch.chdir(checkout)
    import importlib

    ops = importlib.import_module("oddlib.ops")
    with pytest.raises(ReplayDiffersError) as caught:
        compare(ops.f, [torch.ones(4)], backend="software")
    for name in ("oddlib", "oddlib.ops"):
        monkeypatch.delitem(sys.modules, name)
    assert "    oddlib/ops.py:2\n        > return x + x.sum().item()" in str(caught.value)


@pytest.mark.parametrize(
    ("filename", "foreign"),
    [
        ("<string>", True),
        ("<frozen importlib._bootstrap>", True),
        ("<eval_with_key>.7", True),
        ("<doctest mylib.f[0]>", False),
        ("<stdin>", False),
        ("<python-input-3>", False),
        pytest.param(__file__, False, id="this file"),
        pytest.param(torch.__file__, True, id="torch"),
        pytest.param(pytest.__file__, True, id="pytest"),
        pytest.param(weakref.__file__, True, id="standard library"),
        ("/opt/lib/python3.12/site-packages/numpy/linalg/linalg.py", True),
        ("/opt/lib/python3.12/site-packages/vllm/v1/worker.py", False),
        ("/usr/lib/python3/dist-packages/mylib/a.py", False),
    ],
)
def test_which_code_is_a_users(filename: str, foreign: bool) -> None:
    assert is_foreign(filename) is foreign


def test_places_are_shown_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(f"{tmp_path}/a/b.py:3, /x/site-packages/lib/c.py:4") == "a/b.py:3, lib/c.py:4"
    assert shown("<stdin>:1") == "<stdin>:1"
    assert shown("") == ""


def test_the_line_at_work_and_that_of_an_exception() -> None:
    import sys
    import threading

    from pytest_cudafork.capture.interface import lines

    here = lines.line_at_work()
    assert here.startswith(f"{__file__}:")
    assert lines.line_of(None) == ""
    thread = threading.get_ident()
    assert lines.line_in_thread(thread).startswith(f"{__file__}:")
    assert lines.line_in_thread(-1) == ""
    assert lines.line_of_traceback(None) == ""
    try:
        raise KeyError
    except KeyError:
        found = lines.line_of_traceback(sys.exc_info()[2])
    assert found.startswith(f"{__file__}:")


def test_equal_functions_of_two_files_have_a_place_each() -> None:
    text = "import sys\ndef here():\n    return sys._getframe()\n"
    codes, places = [], []
    for name in ("one.py", "two.py"):
        scope: dict[str, Any] = {}
        exec(compile(text, name, "exec"), scope)
        codes.append(scope["here"].__code__)
        places.append(line_of(scope["here"]()))
    assert codes[0] == codes[1], "Python compares no file names"
    assert places == ["one.py:3", "two.py:3"]


def test_code_without_a_file_may_be_the_users() -> None:
    from pytest_cudafork.capture.interface.lines import is_foreign, is_library

    assert (is_foreign("<string>"), is_library("<string>")) == (True, False)
    assert not is_foreign("<stdin>")
    assert is_library("<frozen importlib._bootstrap>")


def test_lines_that_are_asked_for_often_are_those_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pytest_cudafork.capture.interface.lines._MOST_CODE", 3)
    monkeypatch.setattr("pytest_cudafork.capture.interface.lines._KNOWN", {})
    here = [line_at_work() for _ in range(3)]
    then = line_at_work()
    assert len(set(here)) == 1
    first, second = (int(where.rpartition(":")[2]) for where in (here[0], then))
    assert here[0].startswith(__file__)
    assert second == first + 1
    made = {"line_at_work": line_at_work}
    exec(compile("where = line_at_work()", "<frozen of no file>", "exec"), made)
    assert str(made["where"]).startswith(__file__)


class Passing(torch.Tensor):  # type: ignore[misc, name-defined, unused-ignore]
    """A subclass of a user's, whose handler does as torch would."""

    where = ""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.where = line_at_work()
        return super().__torch_function__(func, types, args, kwargs or {})


def test_the_line_of_a_handler_is_the_one_that_calls_the_operator() -> None:
    tensor = torch.ones(2).as_subclass(Passing)
    _ = tensor + 1  # the call
    assert source_of(Passing.where).endswith("# the call")


class Alone:
    """Stands for a frame that nobody has called."""

    f_back = None

    def __init__(self, code: Any) -> None:
        self.f_code, self.f_lasti = code.replace(co_name="__torch_dispatch__"), 0


def test_a_handler_that_no_line_calls_is_told_by_its_own() -> None:
    code = test_a_handler_that_no_line_calls_is_told_by_its_own.__code__
    frame: Any = Alone(code)
    assert line_of(frame) == f"{__file__}:{code.co_firstlineno}"
