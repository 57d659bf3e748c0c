"""The watch begins before the first conftest, however the plugin is loaded."""

from __future__ import annotations

import pytest

from tests.support.native import needs_libraries
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

ALL = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}


WAYS = {
    "by its entry point": ((), ALL),
    "by the name of its entry point": (("-p", "cudafork"), {}),
    "by the name of its entry point, which was loaded anyway": (("-p", "cudafork"), ALL),
    "by its module": (("-p", "pytest_cudafork.plugin"), {}),
    "by the environment": ((), {"PYTEST_PLUGINS": "pytest_cudafork.plugin"}),
}


@needs_libraries
@pytest.mark.parametrize("way", WAYS)
def test_a_conftest_that_touches_is_named(way: str, pytester: pytest.Pytester) -> None:
    plugin, env = WAYS[way]
    path = pytester.makeconftest(module("touch()  # culprit\n"))
    pytester.makepyfile("def test_a(): pass")
    result = run_session(pytester, "--cuda-fork-check", plugin=plugin, env=env)
    result.assert_outcomes(passed=1)
    assert counts(result)["at start-up"] == 1
    result.stdout.fnmatch_lines(
        [
            f"  conftest.py:{line_of(path, '# culprit')}: module body, runs at import",
            "    touched CUDA by cuInit* while pytest started (conftest or plugin)",
        ]
    )


@needs_libraries
def test_a_conftest_may_load_the_plugin_itself(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["pytest_cudafork.plugin"]\n')
    pytester.makepyfile(module("touch()\ndef test_a():\n    child()\n"))
    result = run_session(pytester, "-v", "--cuda-fork-check", plugin=())
    assert outcomes(result) == {"test_a": "FAILED"}
    assert "fork refused" in failure(result, "test_a")
    pytester.makeini("[pytest]\ncuda_fork_check = poison\n")
    result = run_session(pytester, "-v", plugin=())
    assert outcomes(result) == {"test_a": "PASSED"}
    assert counts(result)["forks allowed while initialized"] == 1


@needs_libraries
def test_a_conftest_that_touches_before_it_loads_the_plugin_is_said_to_be_unseen(
    pytester: pytest.Pytester,
) -> None:
    # Without the plugin there is no driver to touch here, so the conftest brings one.
    from pytest_cudafork.observe.driver.native_libs import PHANTOM_DRIVER

    pytester.makeconftest(
        f"import ctypes\nctypes.CDLL({str(PHANTOM_DRIVER)!r}).cuInit(0)\n"
        'pytest_plugins = ["pytest_cudafork.plugin"]\n'
    )
    pytester.makepyfile(module("def test_a():\n    child()\n"))
    result = run_session(pytester, "-v", "--cuda-fork-check", plugin=())
    assert_no_crash(result)
    assert outcomes(result) == {"test_a": "FAILED"}
    assert "something that was not seen" in failure(result, "test_a")
    result.stdout.fnmatch_lines(["*not observable: CUDA was already initialized*-p cudafork)"])


@needs_libraries
def test_another_plugin_that_touches_when_it_is_imported_is_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(pytester.path)
    path = pytester.makepyfile(test_a="def test_a(): pass", touching=module("touch()\n"))
    assert path
    pytester.makeconftest('pytest_plugins = ["touching"]\n')
    result = check(pytester, "fork")
    result.stdout.fnmatch_lines(["  touching.py:*: module body, runs at import"])
