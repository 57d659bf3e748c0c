"""The check where its libraries were not built, or another stands in their place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import pytest_cudafork
from tests.support.native import compile_c, needs_libraries
from tests.support.sessions import (
    TORCH,
    assert_no_crash,
    check,
    counts,
    failure,
    line_of,
    module,
    needs_torch,
)
from tests.support.torch import HIDES_TORCH

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


LIMIT = f"touches by anything {'but torch' if TORCH else '(torch is not installed)'}"
"""What cannot be seen without the phantom driver."""


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
            f"cuda-fork: *witness {'torch API' if TORCH else 'none'},*",
            f"cuda-fork: not observable: {LIMIT}: *was not built. Install*",
            "SKIPPED *phantom_cuda: *was not built*",
        ]
    )
    assert "no touch of CUDA was seen" not in result.stdout.str()
    result = check(pytester, "fork", "--cuda-fork-device=phantom:sm_90", env=env)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert_no_crash(result)
    result.stderr.fnmatch_lines(["ERROR: --cuda-fork-device: phantom:sm_90: *was not built*"])


@pytest.mark.parametrize("libraries", [True, False])
def test_without_torch_no_witness_in_torch_is_named(
    pytester: pytest.Pytester, libraries: bool
) -> None:
    folder = pytester.mkdir("elsewhere")
    if not libraries:
        _without_native_libraries(folder)
    (folder / "sitecustomize.py").write_text(HIDES_TORCH, encoding="utf-8")
    pytester.makepyfile("def test_passes(): ...")
    result = check(pytester, "fork", env={"PYTHONPATH": str(folder)})
    assert_no_crash(result)
    result.assert_outcomes(passed=1)
    witness = "phantom driver" if libraries else "none"
    result.stdout.fnmatch_lines([f"cuda-fork: *, witness {witness}, start method *"])
    if not libraries:
        limit = "cuda-fork: not observable: touches by anything (torch is not installed): *"
        result.stdout.fnmatch_lines([limit])
    result.stdout.no_fnmatch_line("*anything but torch*")


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
    result.stdout.fnmatch_lines([f"*not observable: {LIMIT}: *libcuda.so.1*"])
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
