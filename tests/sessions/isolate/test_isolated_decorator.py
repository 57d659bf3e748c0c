"""The decorator ``isolated`` on tests, and fixtures that a body inherits, in whole sessions."""

from __future__ import annotations

import pytest

from tests.support.isolation import METHODS
from tests.support.sessions import assert_no_crash, failure, needs_torch, outcomes, run_session

DECORATED = """
import os, sys, unittest, warnings, functools, pytest
from pytest_cudafork import isolated

MAIN = int(os.environ["MAIN_PID"])
def elsewhere(): return os.getpid() != MAIN

def logged(fn):
    @functools.wraps(fn)
    def call(*args, **kwargs):
        print("called")
        return fn(*args, **kwargs)
    return call

@pytest.fixture
def here():
    return os.getpid()

@isolated
def test_bare(here): assert elsewhere() and here == os.getpid()
@isolated(method="spawn", env={"OF_CHILD": "1"})
@pytest.mark.parametrize("n", [1, 2])
def test_parameters(n): assert elsewhere() and os.environ["OF_CHILD"] == "1" and n != 2
@logged
@isolated(method="forkserver")
def test_below_another(here): assert elsewhere() and here == os.getpid()
@isolated(method="fork")
@logged
def test_above_another(here): assert elsewhere() and here == os.getpid()
@isolated(method="fork")
def test_skips(): pytest.skip("not here")
@isolated(method="fork")
@pytest.mark.xfail
def test_expected(): assert 0
@isolated(method="fork")
def test_says_fail(): pytest.fail("on purpose")
@isolated(method="fork")
def test_dies(): os.kill(os.getpid(), 11)
class TestMethods:
    @isolated(method="fork")
    def test_method(self, here): assert elsewhere() and here == os.getpid()
    def test_other(self): assert not elsewhere()
@isolated(method="fork")
class TestAll:
    def test_of_class(self): assert elsewhere()
class TestUnit(unittest.TestCase):
    def setUp(self): self.where = os.getpid()
    @isolated(method="fork")
    def test_unit(self): assert elsewhere() and self.where == os.getpid()
    @isolated(method="fork", fixtures="inherit")
    def test_unit_inherits(self): pass

@isolated(method="fork")
def helper(number):
    warnings.warn("careful", FutureWarning)
    print("words of the helper")
    if number > 1: pytest.skip("too many")
    return os.getpid()
def test_helper(recwarn):
    pid = helper(1)
    assert pid != os.getpid() and "careful" in str(recwarn.list[0].message)
def test_helper_skips(): helper(2)
@isolated(method="fork")
def test_helper_in_a_child(): assert helper(1) != os.getpid()
@isolated(method="thread") if "WRONG" in os.environ else isolated
def test_last(): pass
"""


def test_a_decorated_test_is_an_isolated_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(conftest="import os\nos.environ.setdefault('MAIN_PID', str(os.getpid()))\n")
    pytester.makepyfile(DECORATED)
    result = run_session(pytester, "-v", "-rs")
    assert_no_crash(result)
    found = outcomes(result)
    expected = {
        "test_parameters[2]": "FAILED",
        "test_skips": "SKIPPED",
        "test_helper_skips": "SKIPPED",
        "test_expected": "XFAIL",
        "test_says_fail": "FAILED",
        "test_dies": "FAILED",
        "TestUnit::test_unit_inherits": "ERROR",
    }
    assert {name: one for name, one in found.items() if one != "PASSED"} == expected
    assert len(found) == 18
    assert "on purpose" in failure(result, "test_says_fail")
    assert "SIGSEGV in call" in failure(result, "test_dies")
    assert "unittest" in failure(result, "TestUnit.test_unit_inherits")
    monkeypatch.setenv("WRONG", "1")
    result = run_session(pytester, "-v")
    result.stdout.fnmatch_lines(["*@isolated(method='thread'): method is one of auto, fork, *"])
    assert_no_crash(result)


def test_without_isolation_it_runs_here_with_its_variables(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os
        from pytest_cudafork import isolated

        @isolated(method="spawn", fixtures="inherit", env={"OF_CHILD": "1"})
        def test_it(request):
            assert os.environ["OF_CHILD"] == "1"
            assert os.getpid() == request.config.main

        def test_after(): assert "OF_CHILD" not in os.environ
        """
    )
    pytester.makeconftest("import os\ndef pytest_configure(config): config.main = os.getpid()\n")
    result = run_session(pytester, "-v", "--cuda-fork-isolate=none")
    assert outcomes(result) == {"test_it": "PASSED", "test_after": "PASSED"}


def test_a_projects_own_marker_of_that_name_is_its_own(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    isolated(what): of this project\n")
    pytester.makeconftest("import os\ndef pytest_configure(config): config.main = os.getpid()\n")
    pytester.makepyfile(
        """
        import os, pytest

        @pytest.mark.isolated("from everything")
        def test_theirs(request): assert os.getpid() == request.config.main
        @pytest.mark.cuda_isolated
        def test_ours(request): assert os.getpid() != request.config.main
        @pytest.mark.isolated("by start method")
        @pytest.mark.start_methods("fork", "spawn")
        def test_both(): pass
        """
    )
    result = run_session(pytester, "-v", "--strict-markers")
    names = ("test_theirs", "test_ours", "test_both[fork]", "test_both[spawn]")
    assert outcomes(result) == dict.fromkeys(names, "PASSED")


@needs_torch
def test_such_a_marker_of_a_project_does_not_hide_the_backends_of_a_test(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    isolated(what): of this project\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.isolated("by backend")
        @pytest.mark.graph_capture(backends=["software"])
        def test_it(graph_backend): pass
        """
    )
    assert outcomes(run_session(pytester, "-v")) == {"test_it[software]": "PASSED"}


INHERITED = """
import logging, os, threading, warnings, pytest

MAIN = int(os.environ["MAIN_PID"])

class Server:
    started = 0
    def __init__(self): self.pid = os.getpid(); Server.started += 1
@pytest.fixture(scope="session")
def server():
    try:
        yield Server()
    finally:
        with open("ended", "a") as file: file.write(f"{os.getpid() == MAIN}\\n")
@pytest.fixture
def lock(): return threading.Lock()
@pytest.fixture(autouse=True)
def around(monkeypatch): monkeypatch.setenv("SET_BY_FIXTURE", "1")

pytestmark = pytest.mark.isolated(method=METHOD, fixtures="inherit", timeout=60)

def test_there(server, tmp_path, capsys, record_property):
    assert server.pid == MAIN != os.getpid() and os.environ["SET_BY_FIXTURE"]
    assert tmp_path.is_dir()
    print("words"); assert capsys.readouterr().out == "words\\n"
    record_property("seen", 1)
    warnings.warn("careful", FutureWarning)
def test_lock(lock): assert lock.acquire()
def test_fails(server, caplog):
    print("shown"); logging.warning("of the log"); assert [1, 2] == [1, 3]
@pytest.mark.xfail(reason="known")
def test_expected(server): assert 0
def test_skips(server): pytest.skip("inside")
@pytest.mark.skipif(True, reason="before")
def test_skipped(server): os._exit(1)
@pytest.mark.parametrize("odd", [lambda: 1])
def test_unpicklable_parameter(server, odd): assert odd() == 1
def test_dies(server): print("last words"); os._exit(3)
class TestClass:
    @pytest.fixture(scope="class", autouse=True)
    def of_class(self, request): request.cls.given = [MAIN]
    def setup_method(self): self.mine = os.getpid()
    def teardown_method(self): assert os.getpid() == self.mine
    def test_method(self): assert self.mine == self.given[0] == MAIN != os.getpid()
def test_not_inherited_is_started_once(server): assert Server.started <= 1
"""
SUBTESTS = """
def test_subtests(subtests, server):
    for number in range(3):
        with subtests.test(number=number): assert number != 1
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_body_inherits_the_fixtures_of_the_pytest_process(
    pytester: pytest.Pytester, method: str
) -> None:
    pytester.makepyfile(conftest="import os\nos.environ.setdefault('MAIN_PID', str(os.getpid()))\n")
    nine = pytest.version_tuple >= (9, 0)
    source = INHERITED.replace("METHOD", repr(method)) + (SUBTESTS if nine else "")
    pytester.makepyfile(source)
    result = run_session(pytester, "-v", "--junit-xml=out.xml")
    assert_no_crash(result)
    found = outcomes(result)
    found.pop("test_subtests", "")
    expected = {
        "test_fails": "FAILED",
        "test_expected": "XFAIL",
        "test_skips": "SKIPPED",
        "test_skipped": "SKIPPED",
        "test_dies": "FAILED",
    }
    if method != "fork":
        expected["test_lock"] = "ERROR"
        assert "the fixture 'lock' cannot be sent" in failure(result, "test_lock")
    assert {name: one for name, one in found.items() if one != "PASSED"} == expected
    text = failure(result, "test_fails")
    assert "assert [1, 2] == [1, 3]" in text
    assert "At index 1 diff: 2 != 3" in text
    assert "shown" in text
    assert "of the log" in text
    assert "last words" in failure(result, "test_dies")
    result.stdout.fnmatch_lines(["*FutureWarning: careful*"])
    if nine:
        result.stdout.fnmatch_lines(["*contains 1 failed subtest*"])
    assert (pytester.path / "ended").read_text() == "True\n"  # once, and not in a child
    xml = (pytester.path / "out.xml").read_text()
    assert '<property name="seen" value="1"' in xml


RECORDED = """
import warnings
import pytest
from pytest_cudafork import isolated

@pytest.fixture
def recorded():
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        yield log

@pytest.fixture
def strict():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield

@pytest.fixture
def shown(monkeypatch):
    texts = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *about: texts.append(message))
    return texts

@isolated(fixtures="inherit", method="fork")
def test_recwarn(recwarn):
    warnings.warn("of recwarn")
    assert [str(one.message) for one in recwarn] == ["of recwarn"]

@isolated(fixtures="inherit", method="fork")
def test_recorded(recorded):
    warnings.warn("of the list")
    assert len(recorded) == 1

@isolated(fixtures="inherit", method="fork")
def test_shown(shown):
    warnings.warn("of the function")
    assert len(shown) == 1

@isolated(fixtures="inherit", method="fork")
def test_strict(strict):
    with pytest.raises(UserWarning): warnings.warn("is an error")

@isolated(fixtures="inherit", method="fork")
def test_after(): warnings.warn("comes home")
"""


def test_a_fixture_that_records_warnings_hears_those_of_an_inherited_body(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(RECORDED)
    result = run_session(pytester)
    result.assert_outcomes(passed=5, warnings=1)
    result.stdout.fnmatch_lines(["*UserWarning: comes home*"])


WITHOUT_PLUGIN = """
import os, unittest, pytest
from pytest_cudafork import isolated

MAIN = os.getpid()

@pytest.fixture
def here(): return os.getpid()

@isolated
def test_bare(here): assert here == os.getpid() == MAIN
@isolated(scope="module")
def test_scope(here): assert here == os.getpid() == MAIN
@isolated(gpus=1, env={"A": "b"}, timeout=5)
@pytest.mark.parametrize("n", [1, 2])
def test_parameters(n): assert os.getpid() == MAIN and n != 2
class TestUnit(unittest.IsolatedAsyncioTestCase):
    @isolated(scope="class")
    async def test_unit(self): assert os.getpid() == MAIN

@isolated(method="fork")
def helper(): return os.getpid()
def test_helper(): assert helper() != MAIN
"""


def test_decorated_tests_run_in_place_where_the_plugin_is_switched_off(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=WITHOUT_PLUGIN)
    result = run_session(pytester, "-v", plugin=("-p", "no:cudafork"))
    assert outcomes(result) == {
        "test_bare": "PASSED",
        "test_scope": "PASSED",
        "test_parameters[1]": "PASSED",
        "test_parameters[2]": "FAILED",
        "TestUnit::test_unit": "PASSED",
        "test_helper": "PASSED",
    }
    assert "Unknown pytest.mark.cuda_isolated" in result.stdout.str()


CLASSES = """
import pytest, unittest
from pytest_cudafork import isolated

@isolated
class Engine:
    def step(self): return 1
@pytest.mark.cuda_isolated
class Helper: pass
def test_engine(): assert Engine().step()

@isolated
class TestCollected:
    def test_one(self): pass
@isolated
class Unit(unittest.TestCase):
    def test_two(self): pass
@isolated
class Base:
    pass
class TestDerived(Base):
    def test_three(self): pass
@isolated
class TestAbstract:
    __test__ = False
@isolated
class Aliased:
    def test_four(self): pass
TestByAnotherName = Aliased
class NotMarked: pass
"""


def test_a_class_that_is_marked_and_has_no_tests_is_told(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CLASSES)
    result = run_session(pytester, "-Wdefault")
    result.assert_outcomes(passed=5, warnings=2)
    for name in ("Engine", "Helper"):
        result.stdout.fnmatch_lines([f"*CudaForkWarning: the class {name} is marked cuda_iso*"])
    result = run_session(pytester, "-Wdefault", "--cuda-fork-isolate=spawn")
    result.assert_outcomes(passed=5, warnings=2)
