"""Tests of how an isolated test can die: each is a failure of its phase, told in full."""

from __future__ import annotations

import os

import pytest

from tests.support.death import METHODS, headline, run_deaths, told

pytestmark = pytest.mark.fresh_children("children and descriptors of a session are counted")

DEATHS = """
@pytest.fixture
def dies_in_setup():
    print("words in set-up")
    kill_self()
@pytest.fixture
def dies_in_teardown():
    yield
    print("words in tear-down")
    kill_self(signal.SIGSEGV)
@pytest.fixture(autouse=True)
def words(request):
    print(f"words of {request.node.name}")

def test_segfault(): ctypes.string_at(0)
def test_abort(): os.abort()
def test_sigkill(): kill_self()
def test_sigterm(): kill_self(signal.SIGTERM)
def test_real_time_signal(): kill_self(signal.SIGRTMIN + 1)
def test_thread_dies():
    thread = threading.Thread(target=ctypes.string_at, args=(0,))
    thread.start()
    thread.join()
def test_killed_from_outside():
    note(os.getpid())
    subprocess.run(["sh", "-c", f"kill -9 {os.getpid()}; sleep 60"])
def test_exit_0(): os._exit(0)
def test_exit_1(): os._exit(1)
def test_exit_77(): os._exit(77)
def test_exit_255(): os._exit(255)
def test_exec_true(): os.execv("/bin/sh", ["sh", "-c", "exit 0"])
def test_exec_other(): os.execv("/bin/sh", ["sh", "-c", "echo words of the other; exit 3"])
def test_setup(dies_in_setup): pass
def test_teardown(dies_in_teardown): pass
def test_fails_then_dies(dies_in_teardown): assert 0, "its own failure"
def test_at_exit():
    import atexit
    atexit.register(os.abort)
def test_memory_limit():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 34, 1 << 34))
    bytearray(1 << 36)
def test_thread_lives_on(): threading.Thread(target=time.sleep, args=(60,)).start()
def test_last(): pass
"""

HEADLINES = {
    "test_segfault": "ChildCrashed: SIGSEGV in call: *killed by SIGSEGV (exit status -11)*",
    "test_abort": "ChildCrashed: SIGABRT in call: *killed by SIGABRT (exit status -6)*",
    "test_sigkill": "ChildCrashed: SIGKILL in call: *(exit status -9); out of memory?*",
    "test_sigterm": "ChildCrashed: SIGTERM in call: *(exit status -15)*",
    "test_real_time_signal": "ChildCrashed: SIGRTMIN+1 in call: *",
    "test_thread_dies": "ChildCrashed: SIGSEGV in call: *",
    "test_killed_from_outside": "ChildCrashed: SIGKILL in call: *out of memory?*",
    "test_exit_0": "ChildCrashed: exit status 0 in call: *exited with status 0 before*",
    "test_exit_1": "ChildCrashed: exit status 1 in call: *",
    "test_exit_77": "ChildCrashed: exit status 77 in call: *",
    "test_exit_255": "ChildCrashed: exit status 255 in call: *",
    "test_exec_true": "ChildCrashed: exit status 0 in call: *",
    "test_exec_other": "ChildCrashed: exit status 3 in call: *",
    "test_setup": "ChildCrashed: SIGKILL in setup: *",
    "test_teardown": "ChildCrashed: SIGSEGV in teardown: *",
    "test_at_exit": "ChildCrashed: SIGABRT after the test was over: *",
    "test_memory_limit": "MemoryError*",
}
WITH_STACKS = {
    "test_segfault": "in test_segfault",
    "test_abort": "in test_abort",
    "test_thread_dies": "in test_thread_dies",
    "test_teardown": "in dies_in_teardown",
}


@pytest.mark.parametrize("method", METHODS)
def test_every_death_is_told_with_phase_status_output_and_stacks(
    pytester: pytest.Pytester, method: str
) -> None:
    result = run_deaths(pytester, method, DEATHS)
    for test, words in HEADLINES.items():
        pytest.LineMatcher([headline(result, test)]).fnmatch_lines([words])
    for test, frame in WITH_STACKS.items():
        assert frame in told(result, test), told(result, test)
        assert "pytest_pyfunc_call" not in told(result, test).partition("Stacks")[2]
    for test in set(HEADLINES) - {"test_setup", "test_teardown", "test_at_exit"}:
        assert f"words of {test}" in told(result, test), told(result, test)
    assert "words in set-up" in told(result, "test_setup")
    assert "words in tear-down" in told(result, "test_teardown")
    assert "words of the other" in told(result, "test_exec_other")
    assert "its own failure" in told(result, "test_fails_then_dies")
    assert "SIGSEGV in teardown" in told(result, "test_fails_then_dies")
    passed = ["test_teardown", "test_at_exit", "test_thread_lives_on", "test_last"]
    result.stdout.fnmatch_lines([f"PASSED test_d.py::{test}" for test in passed])
    assert result.parseoutcomes() == {"failed": 15, "errors": 4, "passed": 4}


DESCRIPTORS = """
def test_closes_its_output():
    os.close(1); os.close(2)
def test_closes_everything():
    print("words before the end")
    os.closerange(0, 4096)
def test_closes_and_opens():
    # what is opened now gets the numbers of what was closed
    os.closerange(3, 4096)
    files = [open(f"own{i}", "w") for i in range(30)]
    pairs = [socket.socketpair() for _ in range(30)]
    globals().update(files=files, pairs=pairs)
def test_half_a_frame():
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "socket" in os.readlink(f"/proc/self/fd/{name}"):
                os.write(int(name), b"\\xc0FRK")
def test_both_halves_return():
    os.fork()
def test_both_halves_fail():
    os.fork()
    assert 0, "once"
def test_the_first_half_returns_at_once():
    if os.fork() == 0:
        note(os.getpid())
        time.sleep(60)
def test_the_first_half_dies():
    pid = os.fork()
    if pid:
        note(pid)
        os._exit(5)
    time.sleep(0.3)
def test_last(): pass
"""


@pytest.mark.parametrize("method", METHODS)
def test_descriptors_and_forks_cannot_confuse_the_session(
    pytester: pytest.Pytester, method: str
) -> None:
    result = run_deaths(pytester, method, DESCRIPTORS)
    for test in ("test_closes_everything", "test_closes_and_opens"):
        assert "did the test close descriptors" in told(result, test), told(result, test)
    assert "words before the end" in told(result, "test_closes_everything")
    assert [file.read_bytes() for file in pytester.path.glob("own*")] == [b""] * 30
    assert "not a message, in call" in headline(result, "test_half_a_frame")
    assert "exit status 5 in call" in headline(result, "test_the_first_half_dies")
    assert told(result, "test_both_halves_fail").count("AssertionError: once") == 1
    passed = [
        "test_closes_its_output",
        "test_both_halves_return",
        "test_the_first_half_returns_at_once",
        "test_last",
    ]
    result.stdout.fnmatch_lines([f"PASSED test_d.py::{test}" for test in passed])
    assert result.parseoutcomes() == {"failed": 5, "passed": 4}


OUT_OF_MEMORY = """
GROUP = "/sys/fs/cgroup/memory/pytest-cudafork-PID"
@pytest.fixture
def little_memory():
    os.mkdir(GROUP)
    with open(f"{GROUP}/memory.limit_in_bytes", "w") as file: file.write(str(1 << 27))
    with open(f"{GROUP}/cgroup.procs", "w") as file: file.write(str(os.getpid()))
def test_eats(little_memory):
    print("hungry")
    note(os.getpid())
    eaten = b"x" * (1 << 29)
def test_last(): pass
"""


@pytest.mark.skipif(
    not os.access("/sys/fs/cgroup/memory", os.W_OK) or os.geteuid() != 0,
    reason="no memory control group (version 1) can be made here",
)
@pytest.mark.parametrize("method", METHODS)
def test_the_out_of_memory_killer_of_the_kernel(pytester: pytest.Pytester, method: str) -> None:
    body = OUT_OF_MEMORY.replace("PID", str(os.getpid()))
    try:
        result = run_deaths(pytester, method, body)
    finally:
        os.rmdir(f"/sys/fs/cgroup/memory/pytest-cudafork-{os.getpid()}")
    assert "SIGKILL in call" in headline(result, "test_eats")
    assert "out of memory?" in headline(result, "test_eats")
    assert "hungry" in told(result, "test_eats")
    result.assert_outcomes(passed=1, failed=1)
