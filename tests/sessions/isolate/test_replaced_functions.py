"""Tests that put something else in the place of functions of the standard library.

Healthy tests do: they pretend that there is no file, no network, no time. What they replace is in
force until they are torn down, and their reports come before that.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import patched_functions
from tests.support.isolation import METHODS
from tests.support.isolation_compare import Sessions, differences

NEEDED_BY_PYTEST = (
    "inspect.",
    "os.dup2",
    "os.fstat",
    # by way of exceptiongroup, which is there for these releases alone
    *(("traceback.walk_tb",) if sys.version_info < (3, 11) else ()),
)
"""It uses them between the phases, so that a test without isolation fails, too."""
NEEDED_TO_SHOW_A_FAILURE = {
    "builtins.zip",
    "faulthandler.cancel_dump_traceback_later",
    "os.getcwd",
    "os.path.join",
    "traceback.FrameSummary",
    "warnings.catch_warnings",
}

FOR_A_WHOLE_MODULE = (
    *(
        "json.",
        "socket.",
        "zlib.",
        "select.",
        "struct.",
        "resource.",
        "pickle.",
        "signal.",
        "ctypes.",
    ),
    *("os.getpid", "os.memfd_create", "os.kill", "os.pread", "os._exit", "time.monotonic"),
)

UNDONE = """
import warnings

import pytest

import replacing

ALL = replacing.prepare({names!r})
FAILING = {{name: ALL[name] for name in ALL if name not in {shown!r}}}

# pytest itself goes from one test to the next by many of the others
LASTING = {{name: ALL[name] for name in ALL if name.startswith({lasting!r})}}


@pytest.fixture
def replaced(monkeypatch):
    replacing.patch(ALL, monkeypatch.setattr)


@pytest.fixture(scope="module")
def all_along():
    with pytest.MonkeyPatch.context() as patch:
        replacing.patch(LASTING, patch.setattr)
        yield


def test_passes(replaced):
    print("printed")


def test_skips(replaced):
    pytest.skip("why")


@pytest.mark.xfail(reason="known")
def test_xfails(monkeypatch):
    replacing.patch(FAILING, monkeypatch.setattr)
    raise ValueError


def test_fails(monkeypatch):
    print("printed before")
    replacing.patch(FAILING, monkeypatch.setattr)
    assert 1 == 2


@pytest.fixture
def breaks(monkeypatch):
    replacing.patch(FAILING, monkeypatch.setattr)
    raise ValueError("in setup")


def test_is_not_set_up(breaks):
    pass


def test_in_its_body(monkeypatch):
    warnings.warn("told")
    replacing.patch(ALL, monkeypatch.setattr)


def test_whole_module(all_along):
    pass


def test_whole_module_too(all_along):
    print("printed")
"""

LEFT = """
import warnings

import pytest

import replacing

ALL = replacing.prepare({names!r})


def test_leaves_them():
    print("printed")
    warnings.warn("told")
    replacing.patch(ALL)


@pytest.fixture
def not_torn_down():
    yield
    replacing.patch(ALL)


def test_leaves_them_in_teardown(not_torn_down):
    pass


@pytest.mark.xfail(strict=True)
def test_is_told_where_it_fails():
    replacing.patch(ALL)
    raise ValueError


def test_the_next_is_as_ever():
    pass
"""


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    """Write the module that replaces functions; return which can be."""
    (tmp_path / "replacing.py").write_text(patched_functions.HELPER)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    used = patched_functions.used_functions()
    return [one for one in used if not one.startswith(NEEDED_BY_PYTEST)]


def test_functions_of_many_modules_are_replaced(names: list[str]) -> None:
    assert {"os.getpid", "zlib.crc32", "time.monotonic", "os.memfd_create", "select.poll"} < {
        *names
    }
    assert len(names) > 120


@pytest.mark.parametrize("method", METHODS)
def test_a_test_that_replaces_functions_is_reported_as_in_one_process(
    tmp_path: Path, names: list[str], method: str
) -> None:
    lists = {"shown": NEEDED_TO_SHOW_A_FAILURE, "lasting": FOR_A_WHOLE_MODULE}
    source = UNDONE.format(names=names, **lists)
    (tmp_path / "test_it.py").write_text(source)
    before, after = (Sessions(tmp_path, "-rA", "-v").run(how) for how in ("", method))
    outcomes = "1 failed, 4 passed, 1 skipped, 1 xfailed, 1 warning, 1 error"
    assert any(outcomes in line for line in before.stdout), "\n".join(before.stdout)
    difference = differences(before, after)
    assert not difference, difference


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_test_that_never_undoes_what_it_replaces_is_reported(
    tmp_path: Path, names: list[str], method: str
) -> None:
    (tmp_path / "test_it.py").write_text(LEFT.format(names=names))
    seen = Sessions(tmp_path, "-rA", "-W", "error::ImportWarning").run(method)
    text = "\n".join(seen.stdout)
    assert "3 passed, 1 xfailed, 1 warning" in text, text
    assert "UserWarning: told" in text


def test_where_pytest_cannot_end_its_session_in_the_child_the_report_says_by_what(
    tmp_path: Path, names: list[str]
) -> None:
    (tmp_path / "test_it.py").write_text(LEFT.format(names=names))
    seen = Sessions(tmp_path, "-rA", "-k", "leaves_them and not teardown").run("spawn")
    text = "\n".join(seen.stdout)
    assert "1 passed, 3 deselected, 1 warning, 1 error" in text, text
    assert "os.chdir is the test's own by now" in text
