"""What a test does to its own process, or puts in torch's place, does not break the check."""

from __future__ import annotations

import pytest

from tests.support.sessions import (
    assert_no_crash,
    check,
    counts,
    failure,
    line_of,
    module,
    outcomes,
    run_session,
)


def test_a_mock_in_the_place_of_torch_says_nothing_about_cuda(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        import sys
        from unittest.mock import MagicMock

        sys.modules["torch"], sys.modules["torch.cuda"] = MagicMock(), MagicMock()
        """)
    pytester.makepyfile(
        module("""
def test_forks():
    child()

def test_state(cuda_state):
    assert cuda_state().safe_to_fork

def test_phantom(phantom_cuda):
    pass
""")
    )
    result = run_session(pytester, "--cuda-fork-check")
    assert_no_crash(result)
    result.assert_outcomes(passed=3)


def test_a_test_that_closes_all_files_hides_nothing_and_loses_none_of_its_own(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        module("""
opened = []

def test_close():
    os.closerange(3, 64)

def test_open():
    opened.extend(os.open(__file__, os.O_RDONLY) for _ in range(40))

def test_touch():
    touch()

def test_position():
    assert [os.lseek(fd, 0, os.SEEK_CUR) for fd in opened] == [0] * 40
""")
    )
    result = run_session(pytester, "-s", "--cuda-fork-check=touch")
    assert_no_crash(result)
    result.assert_outcomes(failed=1, passed=3)
    assert "Bad file descriptor" not in result.stderr.str()


HOSTILE = """
from unittest import mock

def test_environment_cleared():
    with mock.patch.dict(os.environ, clear=True):
        touch()  # culprit

def test_initialized():
    touch()

def test_forks_with_environment_cleared():
    with mock.patch.dict(os.environ, clear=True):
        os.fork()

def test_forks_in_a_directory_that_is_gone(tmp_path):
    home = os.getcwd()
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    try:
        os.fork()
    finally:
        os.chdir(home)

def test_forks_while_time_stands_still():
    with mock.patch("time.monotonic_ns", lambda: 5):
        os.fork()

def test_swallows_the_refusal():
    try:
        os.fork()
    except Exception:
        pass

def test_replaces_fork():
    with mock.patch("os.fork", lambda: 7):
        assert os.fork() == 7
"""


def test_what_tests_do_to_their_process_does_not_break_the_check(
    pytester: pytest.Pytester,
) -> None:
    path = pytester.makepyfile(module(HOSTILE))
    result = check(pytester, "fork")
    assert_no_crash(result)
    found = outcomes(result)
    failed = {name for name, outcome in found.items() if outcome == "FAILED"}
    swallowing = {"test_swallows_the_refusal"}
    assert failed == {name for name in found if name.startswith("test_forks")} | swallowing
    for name in failed:
        assert "fork refused" in failure(result, name)
        assert f"{path.name}:{line_of(path, '# culprit')}" in failure(result, name)
    assert "too late to fail a test" not in result.stdout.str()
    assert counts(result)["forks guarded"] == 4


def test_a_touch_that_could_not_be_recorded_is_not_called_none(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        module(
            """
def test_loses_the_ledger():
    os.unlink(os.environ["_CUDAFORK_LEDGER"])
    touch()
"""
        )
    )
    result = check(pytester, "touch")
    assert_no_crash(result)
    assert "no touch of CUDA was seen" not in result.stdout.str()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "ERROR: the ledger cannot be read any more: *",
            "ERROR: the driver was initialized in this process*",
            "*so the session fails. The ledger is *--cuda-fork-ledger.",
        ]
    )


def test_records_that_a_full_disk_did_not_take_fail_the_session(
    pytester: pytest.Pytester,
) -> None:
    """A limit of the size of files stands in for the full disk: it cuts records as that does."""
    pytester.makepyfile(
        module(
            """
import resource, signal, subprocess, sys

def full_disk(taken):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = os.path.getsize(os.environ["_CUDAFORK_LEDGER"]) + taken
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

def test_in_a_child():
    for taken in (0, 50):
        code = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"
        # Python says that it began, and the driver that it was touched: neither is taken.
        subprocess.run([sys.executable, "-c", code], preexec_fn=lambda: full_disk(taken))
"""
        )
    )
    assert_a_lost_record_fails_the_session(pytester, "could not write a record")


@pytest.mark.parametrize("limit", ["RLIMIT_NOFILE", "RLIMIT_FSIZE"])
def test_a_process_without_descriptors_or_that_may_write_no_files_fails_the_session(
    limit: str, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        module(
            f"""
import resource

def touch_under_a_limit():
    resource.setrlimit(resource.{limit}, (0, 0))
    touch()

def test_in_a_child():
    child(touch_under_a_limit)
"""
        )
    )
    assert_a_lost_record_fails_the_session(pytester, "could not write to the ledger")


def assert_a_lost_record_fails_the_session(pytester: pytest.Pytester, words: str) -> None:
    """At the levels that depend on it; the test that lost it passes."""
    for level in ("poison", "fork"):
        result = check(pytester, level)
        assert_no_crash(result)
        result.assert_outcomes(passed=1)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines([f"ERROR: a process of the session {words}*"])
