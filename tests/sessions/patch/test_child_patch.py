"""Patches in processes that a test starts, by every method, in whole sessions."""

from __future__ import annotations

import pytest

from tests.support.sessions import assert_no_crash, failure, outcomes, run_session

WORK = """
CONFIG = {"a": 1}
def answer(): return "real"
class Engine:
    def step(self): return "real step"
FIRST = answer()
"""
LOOK = """
import multiprocessing, os, subprocess, sys, pytest

PRINT = (
    "import patched_work as w, os;"
    "print(w.answer(), w.Engine().step(), sorted(w.CONFIG), os.environ.get('PATCHED'))"
)

def fake(): return "fake"

def look():
    import patched_work as work
    return work.answer(), work.Engine().step(), sorted(work.CONFIG), os.environ.get("PATCHED")

def program():
    return subprocess.run(
        [sys.executable, "-c", PRINT], capture_output=True, text=True, check=True, timeout=200
    ).stdout.split(maxsplit=1)[0]

def both(): return look(), program()
def put(queue): queue.put(both())

REAL = (("real", "real step", ["a"], None), "real")
FAKE = (("fake", "fake step", ["a", "b"], "yes"), "fake")

@pytest.fixture
def patched(child_patch):
    child_patch.setattr("patched_work.answer", fake)
    child_patch.setattr("patched_work.Engine.step", lambda self: "fake step")
    child_patch.setitem("patched_work.CONFIG", "b", {1, 2})
    child_patch.setenv("PATCHED", "yes")

def by_multiprocessing(method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=put, args=(queue,))
    process.start()
    try:
        return queue.get(timeout=200)
    finally:
        process.join()
"""
TESTS = """
from look import *

METHODS = ["fork", "forkserver", "spawn"]

def test_before(): assert by_multiprocessing("forkserver") == REAL  # its server stays

@pytest.mark.parametrize("method", METHODS)
def test_multiprocessing(patched, method):
    sys.modules.pop("patched_work", None)
    assert by_multiprocessing(method) == FAKE
    assert "patched_work" not in sys.modules

@pytest.mark.parametrize("fixture", ["run_forked", "run_forkserver", "run_spawned"])
def test_calls(patched, request, fixture): assert request.getfixturevalue(fixture)(both) == FAKE

def test_here(patched): assert both() == FAKE

@pytest.mark.isolated(method="forkserver")
def test_in_an_isolated_test(patched): assert both() == FAKE

@pytest.mark.isolated(method="fork", fixtures="inherit")
def test_inherited_by_fork(patched): assert both() == FAKE
@pytest.mark.isolated(method="forkserver", fixtures="inherit")
def test_inherited_by_forkserver(patched): assert both() == FAKE
@pytest.mark.isolated(method="spawn", fixtures="inherit")
def test_inherited_by_spawn(patched, child_patch):
    assert both() == FAKE
    child_patch.setattr("patched_work.answer", lambda: "again")  # beside what was inherited
    assert look()[:2] == ("again", "fake step") and program() == "again"

@pytest.fixture
def given(patched, child_patch): return child_patch

def isolated_by(*pairs):
    return pytest.mark.parametrize("method", [
        pytest.param(method, marks=pytest.mark.isolated(method=name, fixtures="inherit"), id=name)
        for name, method in pairs
    ])

@isolated_by(("fork", "spawn"), ("forkserver", "forkserver"), ("spawn", "forkserver"))
def test_a_body_that_patches_what_it_was_given(given, method):
    given.setattr("patched_work.answer", lambda: "again")
    expected = (("again", *FAKE[0][1:]), "again")
    assert both() == expected and by_multiprocessing(method) == expected

def a_child_does_not_know_the_name(child_patch):
    sys.modules.pop("patched_work", None)
    child_patch.setattr("patched_work.nothing", 1)
    code = "try: import patched_work\\nexcept Exception: print('swallowed')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "swallowed\\n"

@isolated_by(*zip(METHODS, METHODS))
def test_a_body_whose_children_cannot_be_patched(child_patch, method):
    a_child_does_not_know_the_name(child_patch)

def test_what_a_child_patches_is_its_own(given, run_forked):
    def child():
        given.setattr("patched_work.answer", lambda: "again")
        return look()[0], program()
    assert run_forked(child) == ("again", "again")
    assert both() == FAKE

@pytest.mark.parametrize("method", METHODS[1:])
def test_after(method):
    sys.modules.pop("patched_work", None)
    assert by_multiprocessing(method) == REAL
    assert not [name for name in os.environ if name.startswith("_CUDAFORK_PATCHES")]

def test_modules_that_a_child_executes_again(patched):
    code = (
        "import importlib, sys, patched_work as w;"
        "print(importlib.reload(w).answer());"
        "del sys.modules['patched_work'];"
        "import patched_work as w; print(w.answer(), w.Engine().step(), sorted(w.CONFIG))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "fake\\nfake fake step ['a', 'b']\\n", done.stderr

@pytest.mark.parametrize("method", METHODS)
def test_a_python_path_of_the_test(patched, child_patch, tmp_path, monkeypatch, method):
    here = os.path.dirname(os.path.abspath(__file__))
    child_patch.setenv("PYTHONPATH", f"{tmp_path}:{here}")
    assert both() == FAKE and by_multiprocessing(method) == FAKE
    child_patch.delenv("PYTHONPATH")
    assert both() == FAKE and by_multiprocessing(method) == FAKE

def test_what_the_patches_themselves_need(child_patch):
    child_patch.setattr("pickle.loads", lambda data: "nothing")
    child_patch.setattr("os.fsdecode", lambda data: "nothing")
    child_patch.setattr("patched_work.answer", fake)
    assert program() == "fake"

def test_names_that_a_child_does_not_know(child_patch):
    a_child_does_not_know_the_name(child_patch)

def test_an_interpreter_that_cannot_be_patched(child_patch, monkeypatch):
    import json
    monkeypatch.setattr(json, "only_here", 1, raising=False)
    child_patch.setattr("json.only_here", 2)
    done = subprocess.run([sys.executable, "-c", "import json"], capture_output=True, text=True)
    assert done.returncode == 1 and "has no attribute 'only_here'" in done.stderr
"""


def test_patches_hold_in_every_child_and_in_no_other_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(patched_work=WORK, look=LOOK, test_it=TESTS)
    result = run_session(pytester, "-v")
    assert_no_crash(result)
    found = outcomes(result)
    cannot = "test_a_body_whose_children_cannot_be_patched"
    told = {
        **{f"{cannot}[{method}]": "PASSED ERROR" for method in ("fork", "forkserver", "spawn")},
        "test_names_that_a_child_does_not_know": "PASSED ERROR",
        "test_an_interpreter_that_cannot_be_patched": "PASSED ERROR",
    }
    assert {name: one for name, one in found.items() if one != "PASSED"} == told
    assert len(found) == 3 + 3 + 2 + 9 + 4 + 3 + 3 + 1
    for name, words in zip(told, (*["patched_work"] * 4, "json"), strict=True):
        assert f"child_patch.setattr('{words}." in failure(result, name)
    assert not list(pytester.path.glob("**/child_patch*"))


def test_an_isolated_test_in_a_checked_session_patches_its_own_children(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        patched_work=WORK,
        look=LOOK,
        test_it="""
        from look import *

        def test_patched(patched): assert by_multiprocessing("spawn") == FAKE
        def test_real(): assert program() == "real"
        """,
    )
    result = run_session(pytester, "-v", "--cuda-fork-isolate=fork", "--cuda-fork-check")
    assert outcomes(result) == {"test_patched": "PASSED", "test_real": "PASSED"}


@pytest.mark.parametrize("values", ["beside.fake", "lambda: beside.fake()"])
def test_a_helper_beside_the_test_file_travels_though_no_child_finds_it(
    pytester: pytest.Pytester, values: str
) -> None:
    """The folder of a test file is on the path of pytest; a program does not know of it."""
    folder = pytester.mkdir("tests")
    (folder / "beside.py").write_text("def fake(): return 'fake'\n")
    (folder / "test_it.py").write_text(
        f"""
import multiprocessing, subprocess, sys
import beside, patched_work

def test_a_program(child_patch):
    child_patch.setattr("patched_work.answer", {values})
    code = "import patched_work, sys; print(patched_work.answer(), sys.path)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("fake") and "tests" not in done.stdout, done

def test_multiprocessing(child_patch):
    child_patch.setattr("patched_work.answer", {values})
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(ask) == "fake"

def ask(): return patched_work.answer()
"""
    )
    pytester.makepyfile(patched_work=WORK)
    pytester.syspathinsert()
    result = run_session(pytester, "-v", "tests")
    assert outcomes(result) == {"test_a_program": "PASSED", "test_multiprocessing": "PASSED"}
