"""Fixtures of the pytest process and a body in another one: what each knows of the other."""

from __future__ import annotations

import pytest

from tests.support.isolation import METHODS
from tests.support.sessions import run_session

RECIPE = """
import pytest

@pytest.hookimpl(WRAPPER, tryfirst=True)
def pytest_runtest_makereport(item, call):
    rep = yield
    rep = rep.get_result() if hasattr(rep, "get_result") else rep
    setattr(item, "rep_" + rep.when, rep)
    if rep.when == "call":
        rep.sections.append(("of the hook", "once"))
        item.raised = call.excinfo is not None
    return rep

@pytest.fixture
def how(request):
    yield
    report = request.node.rep_call
    with open("told", "a") as file:
        print(request.node.name, report.outcome, request.node.raised, file=file)
"""
BODIES = """
import os, pytest

pytestmark = pytest.mark.cuda_isolated(method=METHOD, fixtures="inherit")
def test_passes(how, tmp_path): (tmp_path / "kept").touch()
def test_fails(how, tmp_path):
    (tmp_path / "kept").touch()
    assert 0
def test_skips(how): pytest.skip("now")
@pytest.mark.xfail
def test_expected(how): assert 0
def test_dies(how, tmp_path):
    (tmp_path / "kept").touch()
    os.abort()
"""
TOLD = [
    "test_passes passed False",
    "test_fails failed True",
    "test_skips skipped True",
    "test_expected skipped True",
    "test_dies failed True",
]


@pytest.mark.parametrize("wrapper", ["wrapper=True", "hookwrapper=True"])
@pytest.mark.parametrize("method", METHODS)
def test_fixtures_that_are_torn_down_here_know_how_the_body_went(
    pytester: pytest.Pytester, method: str, wrapper: str
) -> None:
    pytester.makeconftest(RECIPE.replace("WRAPPER", wrapper))
    pytester.makepyfile(BODIES.replace("METHOD", repr(method)))
    options = ("--basetemp=base", "-o", "tmp_path_retention_policy=failed")
    result = run_session(pytester, *options)
    result.assert_outcomes(passed=1, failed=2, skipped=1, xfailed=1)
    assert (pytester.path / "told").read_text().splitlines() == TOLD
    kept = {path.resolve().parent.name for path in (pytester.path / "base").glob("*/kept")}
    assert kept == {"test_fails0", "test_dies0"}
    assert result.stdout.str().count("of the hook") == 1, "the report was changed twice"


MARKS = """
import os, pytest

pytestmark = pytest.mark.cuda_isolated(method=METHOD, fixtures="inherit")

@pytest.fixture(params=[True, False], ids=["behind", "before"])
def expects(request):
    request.node.add_marker(pytest.mark.xfail(reason="late", strict=True), append=request.param)
    request.node.add_marker(pytest.mark.of_a_plugin((one for one in ())))  # it does not pickle

def test_fails(expects): assert 0
@pytest.mark.usefixtures()
def test_passes(expects): pass
@pytest.mark.xfail(reason="early", strict=True)
def test_marked(expects): assert 0
def test_dies(expects): os.abort()
def test_plain(): pass
"""


@pytest.mark.parametrize("method", METHODS)
def test_an_xfail_that_a_fixture_adds_here_is_expected_there(
    pytester: pytest.Pytester, method: str
) -> None:
    pytester.makepyfile(MARKS.replace("METHOD", repr(method)))
    result = run_session(pytester, "-rxf", "-Wignore::pytest.PytestUnknownMarkWarning")
    result.assert_outcomes(passed=1, failed=2, xfailed=6)
    assert result.stdout.str().count("[XPASS(strict)] late") >= 2
    reasons = [line.split()[-1] for line in result.stdout.lines if "test_marked[" in line]
    assert reasons == ["early", "early"]


SURROUNDINGS = """
import os, pytest

pytestmark = pytest.mark.cuda_isolated(method=METHOD, fixtures="inherit")

@pytest.fixture
def surroundings(monkeypatch, tmp_path):
    (tmp_path / "made_by_fixture.py").touch()
    monkeypatch.setenv("OF_FIXTURE", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

def test_finds_them(surroundings, tmp_path):
    import made_by_fixture
    assert (os.environ["OF_FIXTURE"], os.getcwd()) == ("1", str(tmp_path))
"""


@pytest.mark.parametrize("method", METHODS)
def test_the_body_has_the_surroundings_that_fixtures_made(
    pytester: pytest.Pytester, method: str
) -> None:
    pytester.makepyfile(SURROUNDINGS.replace("METHOD", repr(method)))
    run_session(pytester).assert_outcomes(passed=1)


WORDS = """
import os, pytest

pytestmark = pytest.mark.cuda_isolated(method=METHOD, fixtures="inherit")

@pytest.fixture
def loud():
    os.write(1, b"set up\\n")
    yield
    print("torn down")

@pytest.fixture
def late():
    yield
    print("late one torn down")

@pytest.fixture
def bad():
    yield
    raise KeyError("bad fixture")

def undo(): raise RuntimeError("bad finalizer")

def test_fails(loud): assert 0
def test_asks_late(loud, request): request.getfixturevalue("late")
def test_undo_fails(loud, request): request.addfinalizer(undo)
def test_both_fail(loud, bad, request): request.addfinalizer(undo)
def test_undo_dies(loud, request): request.addfinalizer(lambda: os._exit(3))
"""
LISTENS = """
def pytest_runtest_logreport(report):
    with open("told", "a") as file:
        text = " ".join(text.strip().replace("\\n", "/") for _, text in report.sections)
        print(report.head_line, report.when, report.outcome, file=file)
        print(report.head_line, report.when, text, file=file)
"""
TOLD_OF_WORDS = {
    "test_fails": ["passed", "failed", "passed"],
    "test_asks_late": ["passed", "passed", "passed"],
    "test_undo_fails": ["passed", "passed", "failed"],
    "test_both_fail": ["passed", "passed", "failed"],
    "test_undo_dies": ["passed", "passed", "failed"],
}
PHASES = ("setup", "call", "teardown")


@pytest.mark.parametrize("method", METHODS)
def test_each_phase_is_reported_once_with_the_output_of_both_processes(
    pytester: pytest.Pytester, method: str
) -> None:
    pytester.makeconftest(LISTENS)
    pytester.makepyfile(WORDS.replace("METHOD", repr(method)))
    result = run_session(pytester)
    result.assert_outcomes(passed=4, failed=1, errors=3)
    told = (pytester.path / "told").read_text().splitlines()
    expected = [
        f"{name} {phase} {outcome}"
        for name, outcomes in TOLD_OF_WORDS.items()
        for phase, outcome in zip(PHASES, outcomes, strict=True)
    ]
    assert told[::2] == expected
    words = dict(zip(told[::2], told[1::2], strict=True))
    assert words["test_fails call failed"] == "test_fails call set up"
    down = words["test_asks_late teardown passed"].split("set up ")[1]
    assert down == "late one torn down torn down"
    both = words["test_both_fail teardown failed"]
    assert "bad finalizer" in both
    result.stdout.fnmatch_lines_random(
        [
            "E * KeyError: 'bad fixture'",
            "*exit status 3 in teardown*",
            "ERROR *::test_undo_fails - RuntimeError: bad finalizer",
        ]
    )


FORBIDDEN = """
import pytest, sys

pytestmark = pytest.mark.cuda_isolated(method=METHOD, fixtures="inherit")

class FailsThere:
    def __reduce__(self): return sys.exit, (3,)
class FailsHere:
    def __reduce__(self): pytest.fail("it is not to be copied")
class ExitsHere:
    def __reduce__(self): sys.exit(3)

@pytest.fixture(params=[FailsHere, ExitsHere, FailsThere])
def one(request): return request.param()
class TestIt:
    @pytest.fixture(autouse=True)
    def mine(self, one): self.mine = one
    def test_self(self): pass
def test_fixture(one): pass
def test_after(): pass
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_fixture_that_forbids_its_pickle_is_an_error_of_its_test(
    pytester: pytest.Pytester, method: str
) -> None:
    pytester.makepyfile(FORBIDDEN.replace("METHOD", repr(method)))
    result = run_session(pytester)
    result.assert_outcomes(passed=1, errors=6)
    result.stdout.fnmatch_lines(["*'one' cannot be sent *it is not to be copied*"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
