"""A fork that is refused in a thread: the story is told at once, and nobody waits for ever."""

from __future__ import annotations

import pytest

from tests.support.sessions import check, counts, failure, line_of, module, outcomes

CONFTEST = """
from pytest_cudafork.check import thread_refusals
thread_refusals.GRACE = thread_refusals.STUCK = 0.5
"""

SCRIPT = """
pool = multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1)
touch()  # in the script
pool.map(abs, [-2, -3], chunksize=1)
"""

WAITING = """
import queue
import time

FORK = multiprocessing.get_context("fork")

@pytest.fixture(scope="session")
def shared():
    yield FORK.Pool(1, maxtasksperchild=1)

def start(work):
    threading.Thread(target=work, name="worker", daemon=True).start()

def test_pool(shared):
    pool = FORK.Pool(1, maxtasksperchild=1)
    touch()  # culprit
    pool.map(abs, [-2, -3], chunksize=1)

def test_thread_that_dies():
    results = queue.Queue()
    start(lambda: results.put(os.fork()))
    results.get()

def test_thread_that_swallows_and_goes_on():
    results = queue.Queue()
    def work():
        try:
            results.put(os.fork())
        except Exception:
            time.sleep(1000)
    start(work)
    results.get()

def test_main_thread_that_catches_everything():
    results = queue.Queue()
    start(lambda: results.put(os.fork()))
    while True:
        try:
            results.get()
        except RuntimeError:
            break
    results.get()

def test_process_below():
    subprocess.run([sys.executable, "script.py"], check=True)

def test_nobody_waits(monkeypatch):
    from pytest_cudafork.check import thread_refusals
    monkeypatch.setattr(thread_refusals, "GRACE", 600.0)  # it ends by itself, be it slowly
    thread = threading.Thread(target=os.fork)
    thread.start()
    thread.join()

def test_the_thread_expects_it():
    import pytest_cudafork
    caught = []
    def work():
        try:
            os.fork()
        except pytest_cudafork.CudaForkError as error:
            caught.append(error)
            time.sleep(1)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

def test_a_pool_of_all_tests_loses_its_thread(shared):
    shared.apply(abs, [-1])
    while shared._worker_handler.is_alive():
        time.sleep(0.01)

def test_a_pool_that_has_lost_its_thread(shared):
    shared.map(abs, [-2, -3], chunksize=1)

def test_innocent():
    time.sleep(1)
"""


def test_a_refusal_in_a_thread_is_told_at_once_and_leaves_nobody_waiting(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(script=module(SCRIPT))
    path = pytester.makepyfile(module(WAITING))
    result = check(pytester, "fork", "-p", "no:threadexception")
    passing = {"test_the_thread_expects_it", "test_innocent"}
    found = outcomes(result)
    assert {name for name, outcome in found.items() if outcome == "PASSED"} == passing
    assert {found[name] for name in found.keys() - passing} == {"FAILED"}
    culprit = f"{path.name}:{line_of(path, '# culprit')} (in test_pool)"
    for name in found.keys() - passing - {"test_process_below"}:
        assert culprit in failure(result, name), name
    # The thread of a pool was refused, and the test stood where it waited.
    told = failure(result, "test_pool")
    assert "pool.map(abs, [-2, -3], chunksize=1)" in told
    assert "The fork was refused in thread 'Thread-" in told
    assert "(_handle_workers)', which ended by it" in told
    assert "which swallowed its error" in failure(result, "test_thread_that_swallows_and_goes_on")
    assert "# in the script" in failure(result, "test_process_below")
    assert "raised in the main thread" not in failure(result, "test_nobody_waits")
    # Past the capture, in full once for each culprit.
    written = result.stderr.str()
    assert written.count("In thread 'worker', which ended by it:") == 2
    assert written.count("what to do:") == 1
    assert counts(result)["forks guarded"] >= len(found) - 2


LATE = """
import pytest_cudafork
from pytest_cudafork.check import guard, refusal

judged = threading.Event()  # the test is over, and what it has done is looked at

@pytest.fixture(autouse=True)
def slowly(monkeypatch):
    settle, story = refusal.Refusals.settle, guard._story

    def settle_and_tell(self, *arguments):
        settle(self, *arguments)
        judged.set()

    def wait(*arguments):
        refused.set()
        judged.wait()
        return story(*arguments)

    monkeypatch.setattr(refusal.Refusals, "settle", settle_and_tell)
    monkeypatch.setattr(guard, "_story", wait)

refused = threading.Event()
end = threading.Event()

def work(expected):
    try:
        os.fork()
    except expected:
        end.wait()

def start(expected):
    refused.clear()
    judged.clear()
    threading.Thread(target=work, args=(expected,), daemon=True).start()
    refused.wait()

def test_expected():
    touch()
    start(pytest_cudafork.CudaForkError)

def test_swallowed():
    start(Exception)

def test_innocent():
    pass
"""


def test_a_thread_may_catch_its_refusal_when_its_test_has_just_ended(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(module(LATE))
    result = check(pytester, "fork")
    assert outcomes(result) == {
        "test_expected": "PASSED",
        "test_swallowed": "FAILED",
        "test_innocent": "PASSED",
    }
