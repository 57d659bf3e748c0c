"""What the user reads: header, last section, JUnit XML."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.support.sessions import (
    TORCH,
    assert_no_crash,
    check,
    counts,
    line_of,
    module,
    run_session,
)


def test_the_header_says_what_is_checked_and_with_which_eyes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass")
    result = run_session(pytester, "--cuda-fork-check", "--cuda-fork-device=phantom:sm_90x2")
    header = next(line for line in result.stdout.lines if line.startswith("cuda-fork: "))
    parts = dict(part.split(" ", 1) for part in header.removeprefix("cuda-fork: ").split(", "))
    assert list(parts) == ["level", "device", "witness", "start", "torch", "driver"]
    assert parts["level"] == "fork"
    assert parts["device"] == "phantom (sm_90x2)"
    assert parts["witness"] == f"phantom driver{' + torch API' if TORCH else ''}"
    assert parts["start"].startswith("method ")
    assert (parts["torch"] != "none") == TORCH
    assert "not observable" not in result.stdout.str()


def test_the_header_shows_the_start_method_that_a_conftest_chose(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest("import multiprocessing\nmultiprocessing.set_start_method('spawn')\n")
    pytester.makepyfile("def test_a(): pass")
    header = "cuda-fork: *start method spawn,*"
    run_session(pytester, "--cuda-fork-check").stdout.fnmatch_lines([header])


def test_header_and_section_obey_pytests_own_switches(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(module("touch()\ndef test_a(): pass\n"))
    for args, header, section in (
        (("--no-header",), False, True),
        (("-q",), False, True),
        (("-p", "no:terminal"), False, False),
    ):
        result = run_session(pytester, "--cuda-fork-check", *args)
        assert_no_crash(result)
        assert result.ret == 0
        assert ("cuda-fork: level" in result.stdout.str()) == header
        assert ("= CUDA and fork =" in result.stdout.str()) == section


def test_touches_are_told_once_for_each_place_and_the_first_in_full(
    pytester: pytest.Pytester,
) -> None:
    path = pytester.makepyfile(
        module(
            """
class Backend:
    for _ in range(3):
        try:
            touch()  # first
        except OSError:
            pass
exec("\\n" * 200 + "x = 0")
VALUE = touch()  # second

def test_a():
    touch()
"""
        )
    )
    result = check(pytester, "fork")
    first = f"{path.name}:{line_of(path, '# first')}: class body of Backend, evaluated at import"
    second = f"{path.name}:{line_of(path, '# second')}: module constant VALUE, evaluated at import"
    result.stdout.fnmatch_lines(
        [
            "touched before any test*",
            f"  {first}",
            '      > ctypes.CDLL("libcuda.so.1").cuInit(0)  # first',
            "    touched CUDA by cuInit*while *.py was collected",
            "    what to do:",
            "      - the class body is evaluated at import; make it lazy*",
            f"also at {second}",
            "touches: *",
        ],
        consecutive=False,
    )
    numbers = counts(result)
    assert numbers["in tests"] == 1
    assert numbers["touches"] == numbers["in tests"] + numbers["at import or collection"]
    assert result.stdout.str().count("what to do:") == 1


def test_many_places_are_counted_and_not_listed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(module("touch()\n" * 25 + "def test_a(): pass\n"))
    result = check(pytester, "fork")
    result.stdout.fnmatch_lines(["... and at 15 more places"])
    assert result.stdout.str().count("also at ") == 9
    assert counts(result)["at import or collection"] == 25


def test_the_section_is_red_for_errors_and_green_without(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(module("def test_a():\n    pass\n"))
    good = run_session(pytester, "--cuda-fork-check", "--color=yes")
    pytester.makepyfile(module("def test_a():\n    touch()\n    child()\n"))
    bad = run_session(pytester, "--cuda-fork-check", "--color=yes")
    for result, color in ((good, "32"), (bad, "31")):
        line = next(line for line in result.stdout.lines if "touches: " in line)
        assert f"\x1b[{color}m" in line
        assert "\x1b[1m" in line


def test_junit_xml_tells_the_story_of_every_failure(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(
        module(
            """
def test_touches():
    touch()  # culprit

def test_forks():
    child()

@pytest.mark.cuda_fork_ok(reason="wrong about it")
def test_child_touches():
    child(touch)

@pytest.mark.cuda_fork_ok(reason="wrong about it")
def test_fails_beside():
    child(touch)
    assert 0

def test_passes():
    pass
"""
        )
    )
    check(pytester, "touch", "--junitxml=out.xml")
    culprit = f"{path.name}:{line_of(path, '# culprit')}"
    cases = {str(case.get("name")): case for case in ElementTree.parse("out.xml").iter("testcase")}
    texts = {name: "".join(case.itertext()) for name, case in cases.items()}
    for name, error in {
        "test_touches": "CudaTouchError",
        "test_forks": "CudaForkError",
        "test_child_touches": "PoisonedTouchError",
    }.items():
        results = [each for each in cases[name] if each.tag != "properties"]
        assert [result.tag for result in results] == ["failure"]
        assert f"pytest_cudafork.{error}" in str(results[0].get("message")), name
        assert culprit in texts[name]
    # The story beside a failure of the test's own is a section, which pytest puts into the log.
    assert [each.tag for each in cases["test_fails_beside"]] == ["properties", "failure"]
    assert list(cases["test_passes"]) == []


def test_the_story_beside_a_tests_own_failure_is_a_section(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(module("def test_a():\n    touch()\n    assert 0, 'own'\n"))
    result = check(pytester, "touch")
    result.stdout.fnmatch_lines(
        [
            "*AssertionError: own",
            "*- Captured CUDA and fork call -*",
            "CUDA was initialized in the pytest process;*",
        ]
    )


def test_a_session_without_tests_keeps_its_exit_status(pytester: pytest.Pytester) -> None:
    result = check(pytester, "touch")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert_no_crash(result)
