"""Sessions in which a test leaves the GPU sick: the phantom driver has a context that breaks."""

from __future__ import annotations

import pytest

from tests.support.sessions import run_session

FACE = ("--cuda-fork-check=poison", "--cuda-fork-device=phantom:sm_90x2")
GPU = """
import ctypes, os, pytest

def use(device=0):
    '''Use the device as a program would: its error is raised here.'''
    lib = ctypes.CDLL("libcuda.so.1")
    assert lib.cuInit(0) == 0
    context = ctypes.c_void_p()
    assert lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    lib.cuCtxSetCurrent(context)
    code = lib.cuCtxSynchronize()
    if code: raise RuntimeError(f"CUDA error {code}")
    return lib

def spoil(device=0, code=700):
    '''Start a kernel that breaks the context; nothing waits for it.'''
    use(device).cudafork_make_sick(device, code)

def note(text):
    with open("notes", "a") as file: file.write(f"{text} {os.getpid()}\\n")
"""
SUITE = (
    GPU
    + """
@pytest.fixture(scope="module")
def engine():
    note("up")
    yield
    note("down")

@pytest.mark.parametrize("i", range(5))
def test_before(i): use(); note("before")
def test_sick(engine): spoil(); note("sick")
@pytest.mark.parametrize("i", range(5))
def test_after(engine, i): use(); note("after")
def test_plain(): note("plain")
"""
)


def notes(pytester: pytest.Pytester) -> dict[str, list[str]]:
    """The processes that wrote a word, by the word."""
    found: dict[str, list[str]] = {}
    for line in (pytester.path / "notes").read_text().splitlines():
        word, pid = line.split()
        found.setdefault(word, []).append(pid)
    return found


def test_fail_names_the_first_sick_test_and_runs_no_other_in_its_process(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(SUITE)
    result = run_session(pytester, *FACE, "--cuda-fork-health", "-rs", "--junitxml=j.xml")
    result.assert_outcomes(passed=5, failed=1, skipped=6)
    result.stdout.fnmatch_lines(
        [
            "the CUDA context of GPU 0 is broken: CUDA_ERROR_ILLEGAL_ADDRESS (700): *",
            "last healthy: *::test_before?4?",
            "first sick:   *::test_sick",
            "*are not run;*",
            "*The driver's log of this test:*",
            "*the context of device 0 was made sick*",
            "*= CUDA health =*",
            "last healthy: *::test_before?4?, first sick: *::test_sick",
            "    6 tests after it were not run: their process was broken",
            "SKIPPED [[]6[]]*not run: the CUDA context is broken since *::test_sick",
        ]
    )
    assert set(notes(pytester)) == {"before", "up", "sick", "down"}
    xml = (pytester.path / "j.xml").read_text()
    assert xml.count('name="cuda_health" value="first sick: the CUDA context of GPU 0') == 1


def test_one_of_200_tests_fails_and_every_sick_process_is_left(
    pytester: pytest.Pytester,
) -> None:
    source = (
        GPU
        + """
@pytest.mark.parametrize("i", range(COUNT))
def test_it(i):
    use()
    note("ran")
    if i in SICK: spoil(1, 719)
"""
    )
    for count, sick in ((200, "57"), (9, "2, 5, 6")):
        here = source.replace("SICK", f"({sick},)").replace("COUNT", str(count))
        pytester.makepyfile(here)
        (pytester.path / "notes").unlink(missing_ok=True)
        result = run_session(pytester, *FACE, "--cuda-fork-health=recover")
        failed = len(sick.split(","))
        result.assert_outcomes(passed=count - failed, failed=failed)
        assert len(set(notes(pytester)["ran"])) == failed + 1


@pytest.mark.parametrize("method", ["", "xdist"])
def test_recover_runs_the_tests_after_it_in_a_fresh_process(
    pytester: pytest.Pytester, method: str
) -> None:
    args = ["-p", "xdist.plugin", "-n1"] if method else []
    if method:
        pytest.importorskip("xdist")
    pytester.makepyfile(SUITE)
    result = run_session(pytester, *FACE, "--cuda-fork-health=recover", "-rA", *args)
    result.assert_outcomes(passed=11, failed=1)
    result.stdout.fnmatch_lines(
        [
            "last healthy: *::test_before?4?, first sick: *::test_sick",
            "    6 tests after it ran in a fresh process",
        ]
    )
    found = notes(pytester)
    assert len(set(found["before"] + found["sick"])) == 1
    fresh = set(found["after"] + found["plain"])
    assert len(fresh) == 1
    assert fresh.isdisjoint(found["before"])
    assert found["up"] == found["down"] == [found["sick"][0], fresh.pop()]


def test_a_sick_test_fails_whatever_was_expected_of_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        GPU
        + """
@pytest.mark.xfail(reason="known")
def test_expected(): spoil(); assert 0
"""
    )
    result = run_session(pytester, *FACE, "--cuda-fork-health=fail")
    result.assert_outcomes(failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("place", ["skip", "failed", "setup", "teardown", "second_device"])
def test_sickness_is_found_after_every_phase(pytester: pytest.Pytester, place: str) -> None:
    bodies = {
        "skip": "def test_it(): spoil(); pytest.skip('never mind')",
        "failed": "def test_it():\n    spoil()\n    use()",
        "setup": "@pytest.fixture\ndef gpu(): spoil(); use()\ndef test_it(gpu): pass",
        "teardown": "@pytest.fixture\ndef gpu():\n    yield\n    spoil()\ndef test_it(gpu): pass",
        "second_device": "def test_it():\n    spoil(1, 719)\n    use(0)",
    }
    pytester.makepyfile(GPU + bodies[place] + "\ndef test_after(): pass\n")
    result = run_session(pytester, *FACE, "--cuda-fork-health=recover")
    counts = result.parseoutcomes()
    assert counts.pop("passed") == (2 if place == "teardown" else 1)
    expected = {"errors": 1} if place in ("setup", "teardown") else {"failed": 1}
    assert counts == expected
    device, code = (1, "LAUNCH_FAILED") if place == "second_device" else (0, "ILLEGAL_ADDRESS")
    result.stdout.fnmatch_lines(
        [
            f"*the CUDA context of GPU {device} is broken: CUDA_ERROR_{code}*",
            "last healthy: none, *",
            "first sick:   *::test_it",
        ]
    )


@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn"])
def test_a_process_that_tests_share_is_renewed_without_being_asked_for(
    pytester: pytest.Pytester, how: str
) -> None:
    mark = f"pytestmark = pytest.mark.cuda_isolated(method={how!r}, scope='module')\n"
    pytester.makepyfile(SUITE + mark)
    result = run_session(pytester, *FACE)
    result.assert_outcomes(passed=11, failed=1)
    result.stdout.fnmatch_lines(["*It was the test's own, or its group's*"])
    found = notes(pytester)
    assert found["up"] == found["down"]
    assert len(set(found["after"])) == 1
    assert set(found["after"]).isdisjoint(found["before"] + found["sick"])
    assert set(found["before"]) == set(found["sick"])


def test_off_asks_nothing_and_without_the_option_only_shared_processes_are_asked(
    pytester: pytest.Pytester,
) -> None:
    mark = "pytestmark = pytest.mark.cuda_isolated(method='fork', scope='module')\n"
    pytester.makepyfile(test_shared=GPU + mark + "def test_a(): spoil()\ndef test_b(): pass\n")
    pytester.makepyfile(test_here=GPU + "def test_a(): spoil()\ndef test_b(): pass\n")
    files = ("test_shared.py", "test_here.py")
    off = run_session(pytester, *FACE, "--cuda-fork-health=off", *files)
    off.assert_outcomes(passed=4)
    silent = run_session(pytester, *FACE, *files)
    silent.assert_outcomes(passed=3, failed=1)
    silent.stdout.no_fnmatch_line("*first sick: *test_here*")


def test_what_a_failure_holds_is_let_go(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        GPU
        + """
import weakref
class Tensor: pass
kept = []
def deep(tensor): raise ValueError("deep")
def test_fails():
    use()
    tensor = Tensor(); kept.append(weakref.ref(tensor))
    try: deep(tensor)
    except ValueError as error: raise RuntimeError("on top") from error
def test_then(): assert kept[0]() is None
"""
    )
    result = run_session(pytester, *FACE, "--cuda-fork-health", "-l", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["tensor * = <*Tensor object*", "*RuntimeError: on top"])


def test_a_test_that_is_run_again_in_a_broken_process_is_no_skip(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(
        """
        from _pytest.runner import runtestprotocol
        def pytest_runtest_protocol(item, nextitem):
            runtestprotocol(item, nextitem=nextitem, log=False)
            for report in runtestprotocol(item, nextitem=nextitem, log=False):
                item.ihook.pytest_runtest_logreport(report=report)
            return True
        """
    )
    pytester.makepyfile(GPU + "def test_it(): spoil()\n")
    result = run_session(pytester, *FACE, "--cuda-fork-health")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*not run: the CUDA context is broken since *::test_it*"])


def test_a_session_without_cuda_is_as_ever(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass\ndef test_b(): assert 0\n")
    result = run_session(pytester, "--cuda-fork-health=recover")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.no_fnmatch_line("*CUDA health*")


def test_the_debugger_keeps_tests_here_so_they_are_not_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(GPU + "def test_a(): spoil()\ndef test_b(): pass\n")
    args = [*FACE, "--cuda-fork-health=recover", "--cuda-fork-isolate=none"]
    result = run_session(pytester, *args)
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["    1 test after it was not run: its process was broken"])
