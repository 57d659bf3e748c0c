"""A refused fork that nobody hears of fails its test; one that is caught by its name does not."""

from __future__ import annotations

import pytest

from tests.support.sessions import check, counts, failure, line_of, module, outcomes, records

CONFTEST = """
from pytest_cudafork.check import thread_refusals
thread_refusals.GRACE = 600.0  # nobody waits for a thread here, though a slow machine may seem to
"""

HEAD = """
import asyncio
import concurrent.futures
import contextlib
import gc
import queue
import unittest

import pytest_cudafork
from pytest_cudafork import CudaForkError

FORK = multiprocessing.get_context("fork")
EXPECTED = (OSError, CudaForkError)

class Refined(CudaForkError):
    pass

@pytest.fixture(scope="session", autouse=True)
def initialized():
    touch()  # culprit

def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

@contextlib.contextmanager
def refused():
    with pytest.raises(CudaForkError):
        yield

@contextlib.contextmanager
def passing_on():
    try:
        yield
    except Exception:
        raise
"""

SWALLOWED = """
def test_except_exception():
    try:
        os.fork()
    except Exception:
        pass

def test_except_runtime_error():
    try:
        os.fork()
    except RuntimeError as error:
        assert "refused" in str(error)

def test_bare_except():
    try:
        os.fork()
    except:
        pass

def test_return_in_finally():
    try:
        os.fork()
    finally:
        return

def test_raises_runtime_error():
    with pytest.raises(RuntimeError, match="fork refused"):
        os.fork()

def test_raises_exception_of_a_pool():
    with pytest.raises(Exception):
        FORK.Pool(1)

def test_suppressed():
    with contextlib.suppress(Exception):
        os.fork()

def test_suppressed_below_a_name_that_is_never_reached():
    try:
        with contextlib.suppress(RuntimeError):
            os.fork()
    except CudaForkError:
        pass

def test_caught_by_name_and_let_go_again():
    def attempt():
        try:
            os.fork()
        except CudaForkError:
            raise
    try:
        attempt()
    except Exception:
        pass

def test_let_go_again_within_one_function():
    try:
        try:
            os.fork()
        except CudaForkError:
            raise
    except Exception:
        pass

def test_replaced_by_an_error_that_is_expected():
    def start():
        try:
            os.fork()
        except Exception as error:
            raise OSError("no worker") from error
    with pytest.raises(OSError):
        start()

def test_thread_dies():
    in_thread(os.fork)

def test_thread_swallows():
    def work():
        try:
            os.fork()
        except Exception:
            pass
    in_thread(work)

def test_executor_whose_result_nobody_wants():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(os.fork)

def test_asyncio_executor():
    async def main():
        loop = asyncio.get_running_loop()
        return await asyncio.gather(
            loop.run_in_executor(None, os.fork), return_exceptions=True
        )
    asyncio.run(main())

def test_in_a_finalizer():
    class Resource:
        def __del__(self):
            os.fork()
    Resource()
    gc.collect()

def test_kept_and_not_looked_at():
    test_kept_and_not_looked_at.error = None
    try:
        os.fork()
    except Exception as error:
        test_kept_and_not_looked_at.error = error

def test_skips_because_of_it():
    try:
        os.fork()
    except Exception:
        pytest.skip("no fork here")

def test_fails_beside_it():
    try:
        os.fork()
    except Exception:
        pass
    assert 0, "of its own"

def test_preexec_fn():
    def fork():
        try:
            os.fork()
        except Exception:
            pass
    subprocess.run(["true"], check=True, preexec_fn=fork)

@pytest.mark.cuda_fork_ok(reason="the child forks once more, unmarked")
def test_in_a_child():
    def fork():
        os.environ.pop("_CUDAFORK_FORK_OK")
        try:
            os.fork()
        except Exception:
            pass
    child(fork)

@pytest.fixture
def swallowing():
    try:
        os.fork()
    except Exception:
        pass

def test_in_a_set_up(swallowing):
    pass

@pytest.fixture
def swallowing_later(request):
    yield
    with contextlib.suppress(Exception):
        os.fork()

def test_in_a_teardown(swallowing_later):
    pass

class TestOfUnittest(unittest.TestCase):
    def test_assert_raises(self):
        with self.assertRaises(RuntimeError):
            os.fork()

class TestThatFailsOfIt(unittest.TestCase):
    def test_fails(self):
        os.fork()

class TestThatSkips(unittest.TestCase):
    def test_skips(self):
        with contextlib.suppress(Exception):
            os.fork()
        self.skipTest("no fork here")

class TestThatFailsBesideIt(unittest.TestCase):
    def test_fails_beside(self):
        with contextlib.suppress(Exception):
            os.fork()
        assert 0, "of the TestCase"

class Unknown:
    def __enter__(self):
        pass
    def __exit__(self, *about):
        return True

def test_a_context_manager_that_names_nothing():
    with Unknown():
        os.fork()
"""

EXPECTED = """
def test_except():
    try:
        os.fork()
    except CudaForkError as error:
        assert "refused" in str(error)

def test_except_among_others():
    for errors in (EXPECTED, CudaForkError):
        try:
            os.fork()
        except ValueError:
            raise
        except errors:
            pass
        except Exception:
            raise

def test_except_by_a_dotted_name():
    try:
        os.fork()
    except (OSError, pytest_cudafork.CudaForkError):
        pass

def test_raises():
    with pytest.raises(CudaForkError):
        os.fork()
    with pytest.raises(expected_exception=EXPECTED, match="fork refused"):
        os.fork()
    pytest.raises(CudaForkError, os.fork)
    manager = pytest.raises(CudaForkError)
    with manager:
        os.fork()

def test_raises_around_an_opening():
    with pytest.raises(CudaForkError), FORK.Pool(1):
        pass

def test_raises_keeps_what_it_caught():
    with pytest.raises(CudaForkError) as info:
        os.fork()
    cycle = [info]
    cycle.append(cycle)
    test_raises_keeps_what_it_caught.info = info

def test_a_manager_of_ones_own():
    with refused():
        os.fork()
    with refused(), passing_on(), threading.Lock():
        os.fork()

def test_suppress():
    with contextlib.suppress(CudaForkError):
        os.fork()

def test_libraries_between_may_let_go_again():
    with pytest.raises(CudaForkError):
        FORK.Pool(1)
    with pytest.raises(CudaForkError):
        concurrent.futures.ProcessPoolExecutor(1, mp_context=FORK).submit(abs, -1)

def test_thread():
    caught = []
    def work():
        try:
            os.fork()
        except CudaForkError as error:
            caught.append(error)
    in_thread(work)
    assert caught

def test_result_of_an_executor():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(os.fork)
        with pytest.raises(CudaForkError):
            future.result()

def test_asyncio_executor():
    async def main():
        with pytest.raises(CudaForkError):
            await asyncio.get_running_loop().run_in_executor(None, os.fork)
    asyncio.run(main())

def test_asyncio_run():
    async def main():
        await asyncio.create_task(inner())
    async def inner():
        await asyncio.sleep(0)
        os.fork()
    with pytest.raises(CudaForkError):
        asyncio.run(main())

@pytest.mark.cuda_fork_ok(reason="the child forks once more, unmarked")
def test_in_a_child():
    def fork():
        os.environ.pop("_CUDAFORK_FORK_OK")
        with pytest.raises(CudaForkError):
            os.fork()
    child(fork)

@pytest.mark.cuda_fork_ok(reason="the child forks once more, unmarked")
def test_error_that_comes_from_a_pool():
    def fork():
        os.environ.pop("_CUDAFORK_FORK_OK")
        os.fork()
    test_error_that_comes_from_a_pool.fork = fork
    with FORK.Pool(1) as pool, pytest.raises(CudaForkError):
        pool.apply(call_it)

def call_it():
    test_error_that_comes_from_a_pool.fork()

def test_preexec_fn():
    def fork():
        try:
            os.fork()
        except CudaForkError:
            pass
    subprocess.run(["true"], check=True, preexec_fn=fork)

@pytest.fixture
def expecting():
    with pytest.raises(CudaForkError):
        os.fork()
    yield
    with pytest.raises(CudaForkError):
        os.fork()

def test_fixture(expecting):
    pass

class TestOfUnittest(unittest.TestCase):
    def test_assert_raises(self):
        with self.assertRaises(CudaForkError) as caught:
            os.fork()
        assert "refused" in str(caught.exception)
        with self.assertRaisesRegex((OSError, CudaForkError), "refused"):
            os.fork()
        self.assertRaises(CudaForkError, os.fork)

@pytest.mark.cuda_fork_ok(reason="the child does nothing")
def test_marked():
    try:
        child()
    except Exception:
        raise
"""

WITHOUT_PLACE = {"test_thread_dies", "test_executor_whose_result_nobody_wants"}


def test_a_refusal_that_is_swallowed_fails_its_test_with_the_place(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(CONFTEST)
    path = pytester.makepyfile(module(HEAD + SWALLOWED))
    result = check(pytester, "fork", "-p", "no:threadexception", "-p", "no:unraisableexception")
    found = outcomes(result)
    names = {name.partition("::")[2] or name for name in found}
    assert len(names) == SWALLOWED.count("def test_")
    assert {name: outcome for name, outcome in found.items() if outcome != "FAILED"} == {
        "test_in_a_set_up": "ERROR",
        "test_in_a_teardown": "PASSED ERROR",
    }
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    culprit = f"{path.name}:{line_of(path, '# culprit')}"
    for name in found:
        told = failure(result, name.replace("::", "."))
        assert f"CUDA was initialized at {culprit} (in initialized)" in told, name
        swallowed = "caught by its name: pytest.raises(CudaForkError)" in told
        assert swallowed == (name != "TestThatFailsOfIt::test_fails"), name
        assert told.count(f"{path.name}:") > 1 or name in WITHOUT_PLACE, name
    assert "AssertionError: of its own" in failure(result, "test_fails_beside_it")
    beside = failure(result, "TestThatFailsBesideIt.test_fails_beside")
    assert "AssertionError: of the TestCase" in beside
    assert "- Captured CUDA and fork call -" in beside
    told = failure(result, "test_except_runtime_error")
    assert "the error was caught, without its name, by" in told
    assert "> except RuntimeError as error:" in told
    assert "> with contextlib.suppress(RuntimeError):" in failure(
        result, "test_suppressed_below_a_name_that_is_never_reached"
    )
    assert "the error ended the thread that forked" in failure(result, "test_thread_dies")


def test_a_refusal_that_is_caught_by_its_name_is_expected(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(module(HEAD + EXPECTED))
    result = check(pytester, "fork", "--cuda-fork-ledger=kept")
    assert set(outcomes(result).values()) == {"PASSED"}
    assert result.ret == 0
    caught = records(pytester.path / "kept", "caught")
    guarded = [r for r in records(pytester.path / "kept", "fork") if r["verdict"] == "guarded"]
    named = {record["fork"] for record in caught if record["by_name"]}
    assert named == {record["id"] for record in guarded}
    assert len(guarded) == counts(result)["forks guarded"] > 20
