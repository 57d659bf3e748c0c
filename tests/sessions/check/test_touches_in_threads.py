"""Touches of threads that are written down when their test has gone on: none is lost."""

from __future__ import annotations

import pytest

from tests.support.sessions import check, failure, module, outcomes

BEGIN_TO_TOUCH = """
import ctypes, threading

def begin_to_touch():
    # The witness has changed the state, and cannot write by which line before somebody reads.
    ledger, gate = os.environ["_CUDAFORK_LEDGER"], os.path.abspath("gate")
    os.mkfifo(gate)
    os.environ["_CUDAFORK_LEDGER"] = gate
    cuda = ctypes.CDLL("libcuda.so.1")

    def touch_in_a_thread():
        cuda.cuInit(0)

    thread = threading.Thread(target=touch_in_a_thread, daemon=True)
    thread.start()
    while not cuda.cudafork_state():
        pass

    def go_on(seconds):
        if os.path.exists(gate):
            with open(gate, "rb") as file, open(ledger, "ab", 0) as written:
                written.write(file.read())
            os.unlink(gate)
            os.environ["_CUDAFORK_LEDGER"] = ledger
            thread.join()

    # What waits for the record looks at it again and again.
    from pytest_cudafork.observe import observer
    observer.time = type("time", (), {"sleep": go_on, "monotonic": lambda: 0.0})
"""


def test_a_touch_that_is_being_written_when_its_test_ends_fails_the_test(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        module(f"{BEGIN_TO_TOUCH}\ndef test_a():\n    begin_to_touch()\n\ndef test_b(): pass\n")
    )
    result = check(pytester, "touch")
    assert outcomes(result) == {"test_a": "FAILED", "test_b": "PASSED"}
    assert "(in touch_in_a_thread)" in failure(result, "test_a")


def test_a_fork_is_refused_with_the_line_that_another_thread_is_about_to_write(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        module(f"{BEGIN_TO_TOUCH}\ndef test_a():\n    begin_to_touch()\n    os.fork()\n")
    )
    result = check(pytester, "fork")
    assert outcomes(result) == {"test_a": "FAILED"}
    assert "(in touch_in_a_thread)" in failure(result, "test_a")


def test_a_touch_that_comes_when_its_test_is_over_fails_the_session(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        module(
            """
def test_a(request):
    global node
    node = request.node.nodeid

def test_b():
    from pytest_cudafork.check.watch import current_watch
    observer, stack = current_watch().observer, [[__file__, 1, "late", None]]
    about = dict(entry="cuInit", test=f"{node} (call)", owner=observer.owner, stack=stack)
    observer.ledger.append("touch", **about)
"""
        )
    )
    result = check(pytester, "touch")
    assert outcomes(result) == {"test_a": "PASSED", "test_b": "PASSED"}
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR: *::test_a, too late to fail a test:"])
