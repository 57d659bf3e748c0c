"""Surroundings in which a check once told wrongly or broke: each was found by reading the code."""

from __future__ import annotations

import pytest

from tests.support.sessions import (
    assert_no_crash,
    check,
    counts,
    failure,
    line_of,
    module,
    needs_torch,
    outcomes,
    run_session,
)


@needs_torch
def test_the_same_lines_touch_in_every_test_that_runs_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest, torch

        @pytest.fixture
        def gpu():
            return torch.cuda.is_available()

        @pytest.mark.parametrize("n", [1, 2])
        def test_body(n):
            torch.cuda.is_available()
            torch.cuda.is_available()

        def test_fixture_1(gpu):
            pass

        def test_fixture_2(gpu):
            pass
        """)
    result = run_session(pytester, "--cuda-fork-check=touch")
    assert_no_crash(result)
    result.assert_outcomes(failed=2, errors=2)


# In this order: the first two in a clean process, the others in an initialized one.
CASES = """
def test_clean_child_touches():
    child(touch)

def test_touch():
    touch()  # culprit

def test_forks():
    child()

def test_child_touches():
    child(touch)

def test_grandchild_touches():
    child(lambda: child(touch))

def test_the_code_swallows_every_error():
    def attempt():
        try:
            child(touch)
        except Exception:
            pass
    child(attempt)

@pytest.mark.cuda_fork_ok(reason="never touches")
def test_may_fork():
    child()

@pytest.mark.cuda_fork_ok(reason="wrong about it")
def test_may_fork_and_child_touches():
    child(touch)

def test_exec():
    script = 'import ctypes; ctypes.CDLL("libcuda.so.1").cuInit(0)'
    subprocess.run([sys.executable, "-c", script], check=True)

def test_skips():
    pytest.skip("a reason")

@pytest.mark.xfail
def test_expected():
    assert 0

def test_clean():
    pass
"""


REFUSED = {
    "test_forks": "FAILED",
    "test_child_touches": "FAILED",
    "test_grandchild_touches": "FAILED",
    "test_the_code_swallows_every_error": "FAILED",
}


EXPECTED = {
    "test_clean_child_touches": "PASSED",
    "test_touch": "PASSED",
    "test_forks": "PASSED",
    "test_child_touches": "FAILED",
    "test_grandchild_touches": "FAILED",
    "test_the_code_swallows_every_error": "FAILED",
    "test_may_fork": "PASSED",
    "test_may_fork_and_child_touches": "FAILED",
    "test_exec": "PASSED",
    "test_skips": "SKIPPED",
    "test_expected": "XFAIL",
    "test_clean": "PASSED",
}


@pytest.mark.parametrize("level", ["poison", "fork", "touch"])
def test_a_level_fails_what_it_is_about_and_nothing_else(
    level: str, pytester: pytest.Pytester
) -> None:
    path = pytester.makepyfile(module(CASES))
    result = check(pytester, level)
    expected = dict(EXPECTED)
    if level != "poison":
        expected |= REFUSED
    if level == "touch":
        expected["test_touch"] = "FAILED"
    assert outcomes(result) == expected
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    # Whatever the failure is, it names the line that initialized CUDA.
    culprit = f"{path.name}:{line_of(path, '# culprit')}"
    for test, outcome in expected.items():
        if outcome == "FAILED":
            assert culprit in failure(result, test), test
    story = failure(result, "test_may_fork_and_child_touches")
    assert "was forked from an initialized process and touched CUDA" in story
    result.stdout.fnmatch_lines(["FAILED *::test_may_fork_and_child_touches - *PoisonedTouchErr*"])
    assert f"{path.name}:{line_of(path, 'pid = os.fork()')}" in story
    assert ("CudaForkError" in failure(result, "test_child_touches")) == (level != "poison")
    numbers = counts(result)
    assert numbers["forks guarded"] == (0 if level == "poison" else 4)
    assert numbers["poisoned touches"] == (4 if level == "poison" else 1)


def test_a_clean_suite_is_left_alone_at_the_strictest_level(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        module(
            """
def test_forks():
    child(lambda: child())

def test_pool():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(abs, [-1]) == [1]

def test_only_loads_the_driver_and_asks_its_version():
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    child()
"""
        )
    )
    result = check(pytester, "touch")
    result.assert_outcomes(passed=3)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["no touch of CUDA was seen"])
    assert not any(counts(result).values())


PLACES = """
@pytest.fixture(scope="session")
def initialized():
    touch()  # session fixture
    return 1

@pytest.fixture
def untidy():
    yield
    touch()  # teardown

def test_before():
    pass

def test_setup(initialized):
    pass

def test_after_setup(initialized):
    pass

def test_teardown(untidy):
    pass

def test_thread():
    thread = threading.Thread(target=touch)  # thread
    thread.start()
    thread.join()

def test_skips():
    touch()  # before skip
    pytest.skip("too late")

def test_imperative_xfail():
    touch()  # before xfail
    pytest.xfail("too late")

def test_fails_by_itself():
    touch()  # before failure
    assert 0, "by itself"
"""


def test_each_phase_and_thread_is_failed_for_its_own_touch(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(module(PLACES))
    result = check(pytester, "touch")
    assert outcomes(result) == {
        "test_before": "PASSED",
        "test_setup": "ERROR",
        "test_after_setup": "PASSED",
        "test_teardown": "PASSED ERROR",
        "test_thread": "FAILED",
        "test_skips": "FAILED",
        "test_imperative_xfail": "FAILED",
        "test_fails_by_itself": "FAILED",
    }
    for test, text in {
        "test_setup": "# session fixture",
        "test_teardown": "# teardown",
        "test_skips": "# before skip",
        "test_imperative_xfail": "# before xfail",
        "test_fails_by_itself": "# before failure",
    }.items():
        assert f"{path.name}:{line_of(path, text)}" in failure(result, test)
    # A test that fails anyway keeps its own failure, with the story beside it.
    own = failure(result, "test_fails_by_itself")
    assert "AssertionError: by itself" in own
    assert "CUDA was initialized in the pytest process" in own
    assert "by itself" not in failure(result, "test_skips")


def test_below_level_touch_no_place_of_a_touch_fails_anything(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(module(PLACES))
    result = check(pytester, "fork")
    assert outcomes(result) == {
        "test_before": "PASSED",
        "test_setup": "PASSED",
        "test_after_setup": "PASSED",
        "test_teardown": "PASSED",
        "test_thread": "PASSED",
        "test_skips": "SKIPPED",
        "test_imperative_xfail": "XFAIL",
        "test_fails_by_itself": "FAILED",
    }
    assert counts(result)["touches"] == counts(result)["in tests"]


def test_a_skip_or_failure_does_not_hide_a_poisoned_child(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        module(
            """
def test_first():
    touch()

def test_skips():
    child(touch)
    pytest.skip("hides nothing")

def test_fails():
    child(touch)
    assert 0, "by itself"

@pytest.mark.xfail(reason="of something else", raises=ValueError)
def test_expected_to_fail_of_something_else():
    child(touch)

@pytest.mark.xfail(reason="just this")
def test_expected_to_fail():
    child(touch)

@pytest.fixture
def forking():
    yield
    child(touch)

def test_teardown(forking):
    pass
"""
        )
    )
    result = check(pytester, "poison")
    assert outcomes(result) == {
        "test_first": "PASSED",
        "test_skips": "FAILED",
        "test_fails": "FAILED",
        "test_expected_to_fail_of_something_else": "FAILED",
        "test_expected_to_fail": "XFAIL",
        "test_teardown": "PASSED ERROR",
    }
    for test in ("test_skips", "test_fails", "test_teardown"):
        assert "was forked from an initialized process and touched CUDA" in failure(result, test)
    assert "AssertionError: by itself" in failure(result, "test_fails")


IMPORTS = {
    "import": "touch()  # culprit\ndef test_a(): pass\n",
    "class body": "class Backend:\n    touch()  # culprit\ndef test_a(): pass\n",
    "parametrize": (
        "def values():\n    touch()  # culprit\n    return [1]\n"
        "@pytest.mark.parametrize('x', values())  # asks\ndef test_a(x): pass\n"
    ),
    "generate": (
        "def pytest_generate_tests(metafunc):\n    touch()  # culprit\ndef test_a(): pass\n"
    ),
}


@pytest.mark.parametrize("place", IMPORTS)
def test_a_touch_at_collection_fails_at_level_touch_and_is_listed_otherwise(
    place: str, pytester: pytest.Pytester
) -> None:
    path = pytester.makepyfile(module(IMPORTS[place]))
    # The innermost line that runs at import is named, a function that it calls is not.
    marked = "# asks" if place == "parametrize" else "# culprit"
    named = f"{path.name}:{line_of(path, marked)}"
    strict = check(pytester, "touch")
    assert strict.ret == pytest.ExitCode.INTERRUPTED
    strict.assert_outcomes(errors=1)
    assert named in strict.stdout.str()
    listed = check(pytester, "fork")
    assert listed.ret == 0
    listed.assert_outcomes(passed=1)
    listed.stdout.fnmatch_lines(["touched before any test:", f"  {named}: *"])
    assert counts(listed)["at import or collection"] == 1


def test_a_module_that_breaks_after_its_touch_keeps_its_own_error(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(module("touch()\nimport no_such_module\ndef test_a(): pass\n"))
    result = check(pytester, "touch")
    text = result.stdout.str()
    assert "No module named 'no_such_module'" in text
    assert "CUDA was initialized in the pytest process" in text
    result = check(pytester, "fork")
    assert "No module named 'no_such_module'" in result.stdout.str()
    result.stdout.fnmatch_lines(["touched before any test:"])


@pytest.mark.parametrize("args", [(), ("--co",)], ids=["run", "collect only"])
def test_a_touch_in_a_conftest_is_named_without_any_test_file_importing_it(
    args: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    path = pytester.makeconftest(module("touch()  # culprit\n"))
    pytester.makepyfile("def test_a(): pass")
    result = check(pytester, "fork", "-p", "no:cacheprovider", "-s", *args)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["touched before any test:", f"  conftest.py:{line_of(path, '# culprit')}: *"]
    )
    assert counts(result)["at start-up"] == 1


def test_a_touch_in_a_conftest_fails_the_session_at_level_touch(pytester: pytest.Pytester) -> None:
    path = pytester.makeconftest(module("touch()  # culprit\n"))
    pytester.makepyfile("def test_a(): pass")
    result = check(pytester, "touch")
    assert result.ret != 0
    assert f"conftest.py:{line_of(path, '# culprit')}" in result.stdout.str()


def test_a_touch_in_a_conftest_further_down_is_named(pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("below")
    (folder / "conftest.py").write_text(module("touch()  # culprit\n"))
    (folder / "test_a.py").write_text("def test_a(): pass\n")
    result = check(pytester, "fork")
    assert result.ret == 0
    line = line_of(folder / "conftest.py", "# culprit")
    result.stdout.fnmatch_lines([f"  below/conftest.py:{line}: *"])


def test_a_child_that_touches_after_its_test_has_ended_fails_the_session(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        module(
            """
def test_first():
    touch()

def test_leaves_a_child():
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(write)
        os.read(read, 1)  # until the parent closes its end
        touch()
        os._exit(0)
    os.close(read)
    pytest.write = write

def test_innocent():
    os.close(pytest.write)
    os.wait()

def test_last():
    pass
"""
        )
    )
    result = check(pytester, "poison")
    assert set(outcomes(result).values()) == {"PASSED"}
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR: *::test_leaves_a_child, too late to fail a test:"])


def test_a_process_forked_at_import_is_watched_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(module("touch()\nchild(touch)\ndef test_a(): pass\n"))
    result = check(pytester, "poison")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(errors=1)
    assert "was forked from an initialized process and touched CUDA" in result.stdout.str()
    result = check(pytester, "fork")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "CudaForkError: fork refused" in result.stdout.str()


def test_what_fails_for_its_touch_alone_is_told_what_makes_it_green(
    pytester: pytest.Pytester,
) -> None:
    path = pytester.makepyfile(
        module(
            """
def test_touches():
    touch()

@pytest.mark.cuda_fork_ok(reason="the marker is about forks")
def test_may_fork():
    touch()

@pytest.mark.cuda_isolated()
def test_isolated():
    touch()
"""
        )
    )
    result = check(pytester, "touch")
    passed = {"test_touches": "FAILED", "test_may_fork": "FAILED", "test_isolated": "PASSED"}
    assert outcomes(result) == passed
    plain, marked = failure(result, "test_touches"), failure(result, "test_may_fork")
    assert "mark the test @pytest.mark.cuda_isolated()" in plain
    assert "accept its line: --cuda-fork-baseline=FILE --cuda-fork-baseline-update." in plain
    assert "start the children" not in result.stdout.str()
    assert "cuda_fork_ok" not in plain
    assert "The marker cuda_fork_ok allows forks, and no touch." in marked
    baseline = ("--cuda-fork-baseline=b.toml", "--cuda-fork-baseline-update")
    assert set(outcomes(check(pytester, "touch", *baseline)).values()) == {"PASSED"}
    assert set(outcomes(check(pytester, "touch", baseline[0])).values()) == {"PASSED"}
    assert path.name in (pytester.path / "b.toml").read_text(encoding="utf-8")
