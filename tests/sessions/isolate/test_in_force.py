"""The watch is in force before the first conftest, however the plugin is loaded, and wherever."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import pytest_cudafork
from tests.support.helpers import (
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
from tests.support.native import compile_c, needs_libraries

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


# -- surroundings that are not as they should be ---------------------------------------------------

SUITE = """
def test_passes():
    pass

def test_forks():
    child()

def test_state(cuda_state):
    assert cuda_state().why

def test_phantom(phantom_cuda):
    assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
"""


def _without_native_libraries(folder: Path) -> str:
    home = Path(pytest_cudafork.__file__).parent
    ignore = shutil.ignore_patterns("lib", "__pycache__", "*.c", "*.h")
    shutil.copytree(home, folder / home.name, ignore=ignore)
    return str(folder)


def test_without_native_libraries_the_check_says_what_it_cannot_see(
    pytester: pytest.Pytester,
) -> None:
    env = {"PYTHONPATH": _without_native_libraries(pytester.mkdir("elsewhere"))}
    pytester.makepyfile(module(SUITE))
    result = check(pytester, "fork", "-rs", env=env)
    assert_no_crash(result)
    result.assert_outcomes(passed=3, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "cuda-fork: *witness torch API*",
            "cuda-fork: not observable: touches by anything but torch: *was not built. Install*",
            "SKIPPED *phantom_cuda: *was not built*",
        ]
    )
    assert "no touch of CUDA was seen" not in result.stdout.str()
    result = check(pytester, "fork", "--cuda-fork-device=phantom:sm_90", env=env)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert_no_crash(result)
    result.stderr.fnmatch_lines(["ERROR: --cuda-fork-device: phantom:sm_90: *was not built*"])


@needs_torch
def test_without_native_libraries_torch_is_still_watched(pytester: pytest.Pytester) -> None:
    env = {"PYTHONPATH": _without_native_libraries(pytester.mkdir("elsewhere"))}
    path = pytester.makepyfile(
        module("import torch\nHAS = torch.cuda.is_available()  # culprit\ndef test_a(): child()\n")
    )
    result = check(pytester, "fork", env=env)
    assert f"{path.name}:{line_of(path, '# culprit')}" in failure(result, "test_a")


def test_a_library_of_the_drivers_name_that_is_no_driver_is_no_crash(
    pytester: pytest.Pytester,
) -> None:
    library = pytester.path / "libcuda.so.1"
    compile_c(
        "int something_else(void) { return 7; }",
        library,
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
    )
    pytester.makepyfile(module(SUITE))
    # Mapped before the watch begins, so the phantom cannot take its place.
    result = check(pytester, "fork", "-rs", env={"LD_PRELOAD": str(library)})
    assert_no_crash(result)
    result.assert_outcomes(passed=3, skipped=1)
    result.stdout.fnmatch_lines(["*not observable: touches by anything but torch: *libcuda.so.1*"])
    assert "no touch of CUDA was seen" not in result.stdout.str()
    # Found later, it does not get past the phantom.
    result = check(pytester, "fork", env={"LD_LIBRARY_PATH": str(library.parent)})
    assert_no_crash(result)
    result.assert_outcomes(passed=4)


@needs_libraries
def test_a_profilers_injection_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        module(
            """
def test_a():
    assert os.environ["CUDA_INJECTION64_PATH"] == "/opt/profiler.so"
    touch()
"""
        )
    )
    result = check(pytester, "fork", env={"CUDA_INJECTION64_PATH": "/opt/profiler.so"})
    assert_no_crash(result)
    result.assert_outcomes(passed=1)
    assert counts(result)["touches"] == 1
