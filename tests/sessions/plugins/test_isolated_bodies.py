"""The decorator ``isolated`` and bodies that inherit their fixtures, beside other plugins."""

from __future__ import annotations

import importlib.util

import pytest

from tests.support.isolation import METHODS
from tests.support.isolation_plugins import needs
from tests.support.sessions import assert_no_crash, failure, outcomes, run_session

MAIN = "import os\nos.environ.setdefault('MAIN_PID', str(os.getpid()))\n"
COROUTINES = """
    import LIBRARY as library, os, pytest
    from pytest_cudafork import isolated
    MAIN = int(os.environ["MAIN_PID"])
    MARK

    @pytest.fixture
    async def number():
        await library.sleep(0)
        yield os.getpid()

    @isolated(method=METHOD)
    async def test_own(number):
        await library.sleep(0)
        assert number == os.getpid() != MAIN
    @isolated(method=METHOD, fixtures="inherit")
    async def test_inherits(number):
        await library.sleep(0.001)
        assert number == MAIN != os.getpid()
    @isolated(method=METHOD, fixtures="inherit")
    async def test_fails(number):
        await library.sleep(0)
        assert number == os.getpid()
    @isolated(method=METHOD)
    async def helper(value):
        await library.sleep(0)
        return value, os.getpid()
    async def test_helper(number):
        value, pid = await helper(3)
        assert value == 3 and pid != os.getpid() == number
"""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_coroutines_run_in_the_child(pytester: pytest.Pytester, library: str, method: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    plugin = needs("asyncio" if library == "asyncio" else "anyio")
    mark = "pytestmark = pytest.mark.asyncio"
    if library == "trio":
        mark = (
            "pytestmark = pytest.mark.anyio\n"
            "    @pytest.fixture\n"
            "    def anyio_backend(): return 'trio'"
        )
    source = COROUTINES.replace("LIBRARY", library).replace("MARK", mark)
    pytester.makepyfile(source.replace("METHOD", repr(method)))
    pytester.makeconftest(MAIN)
    if library == "asyncio":
        modes = ("asyncio_mode = auto", "asyncio_default_fixture_loop_scope = function")
        pytester.makeini("\n".join(["[pytest]", *modes]))
    result = run_session(pytester, "-v", "-p", plugin)
    assert_no_crash(result)
    found = outcomes(result)
    names = ("test_own", "test_inherits", "test_helper")
    assert found == {**dict.fromkeys(names, "PASSED"), "test_fails": "FAILED"}
    assert "assert number == os.getpid()" in failure(result, "test_fails")


FLAKY = """
    import os, pathlib, pytest
    pytestmark = pytest.mark.isolated(method=METHOD, fixtures="inherit")
    HERE = pathlib.Path(__file__).parent

    @pytest.fixture
    def run():
        path = HERE / "runs"
        path.write_text(str(int(path.read_text()) + 1 if path.exists() else 1))
        return int(path.read_text())
    @pytest.mark.flaky(reruns=2)
    def test_at_last(run): assert run == 3
    @pytest.mark.flaky(reruns=1)
    def test_never(): assert 0
    @pytest.mark.flaky(reruns=1)
    def test_dies(): os._exit(3)
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_body_runs_again_with_its_fixtures(pytester: pytest.Pytester, method: str) -> None:
    plugin = needs("rerunfailures")
    pytester.makepyfile(FLAKY.replace("METHOD", repr(method)))
    result = run_session(pytester, "-v", "-p", plugin)
    assert_no_crash(result)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*2 failed, 1 passed, 4 rerun*"])


LIMITS = """
    import pytest, time
    @pytest.mark.timeout(4)
    @pytest.mark.isolated(method=METHOD, fixtures="inherit")
    def test_hangs(): time.sleep(100)
    @pytest.mark.isolated(method=METHOD, fixtures="inherit")
    def test_next(mocker):
        mocker.patch("os.getcwd", return_value="patched")
        import os
        assert os.getcwd() == "patched"
"""


@pytest.mark.parametrize("method", METHODS)
def test_limits_of_pytest_timeout_hold_in_the_body(pytester: pytest.Pytester, method: str) -> None:
    plugins = ["-p", needs("timeout"), "-p", needs("mock")]
    pytester.makepyfile(LIMITS.replace("METHOD", repr(method)))
    result = run_session(pytester, "-v", *plugins)
    assert_no_crash(result)
    assert outcomes(result) == {"test_hangs": "FAILED", "test_next": "PASSED"}
    assert "Timeout" in failure(result, "test_hangs")
