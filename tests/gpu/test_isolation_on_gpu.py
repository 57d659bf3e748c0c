"""Isolation with a real driver: which process a test gets, and that CUDA works in it."""

from __future__ import annotations

import pytest

from tests.support.isolation import METHODS
from tests.support.sessions import needs_torch

pytestmark = [
    pytest.mark.gpu,
    needs_torch,
]

FIRST_ACT = """
import torch, pytest
@pytest.mark.parametrize("i", range(3))
def test_first_act(i):
    assert torch.ones(4, device="cuda").sum().item() == 4
"""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("check", ["off", "fork", "touch"])
def test_a_cuda_tensor_can_be_the_first_act_of_an_isolated_test(
    pytester: pytest.Pytester, method: str, check: str
) -> None:
    pytester.makepyfile(FIRST_ACT)
    result = pytester.runpytest_subprocess(
        f"--cuda-fork-isolate={method}", f"--cuda-fork-check={check}", "-v"
    )
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines([f"*test_first_act?0? PASSED ({method})*"])


@pytest.mark.parametrize("check", ["off", "poison"])
def test_an_initialized_pytest_process_gets_the_fork_server_and_refuses_fork(
    pytester: pytest.Pytester, check: str
) -> None:
    pytester.makeconftest(
        """
        import os, torch
        def pytest_collection_finish():
            if "pytest_cudafork.isolate.child.server_session" not in __import__("sys").modules:
                torch.ones(1, device="cuda")
        """
    )
    pytester.makepyfile(FIRST_ACT)
    result = pytester.runpytest_subprocess(
        "--cuda-fork-isolate=auto", f"--cuda-fork-check={check}", "-v"
    )
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*test_first_act?0? PASSED (forkserver)*"])
    result = pytester.runpytest_subprocess("--cuda-fork-isolate=fork", f"--cuda-fork-check={check}")
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(["*CUDA is initialized in the pytest process*"])


@pytest.mark.parametrize(
    "line",
    [
        "import torch; torch.cuda.is_available()",
        "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)",
    ],
)
def test_a_file_that_touches_at_import_is_named_and_spawned(
    pytester: pytest.Pytester, line: str
) -> None:
    pytester.makepyfile(test_a_touches=f"{line}\n{FIRST_ACT}", test_b=FIRST_ACT)
    result = pytester.runpytest_subprocess(
        "--cuda-fork-isolate=forkserver", "--cuda-fork-check=poison", "-v"
    )
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(
        [
            "*test_a_touches.py::test_first_act?0? PASSED (spawn)*",
            "*test_b.py::test_first_act?0? PASSED (forkserver)*",
            "*3 tests by spawn, not forkserver: after the import of test_a_touches.py, CUDA is "
            "initialized*first touch: *test_a_touches.py:1*",
        ]
    )


def test_a_model_on_the_gpu_is_loaded_once_for_a_module(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, torch, pytest
        pytestmark = pytest.mark.cuda_isolated(method="forkserver", scope="module")
        @pytest.fixture(scope="module")
        def model():
            with open("loads", "a") as file: file.write(f"{os.getpid()}\\n")
            return torch.nn.Linear(8, 8).cuda()
        @pytest.mark.parametrize("i", range(3))
        def test_x(model, i): assert model(torch.ones(1, 8, device="cuda")).shape == (1, 8)
        def test_crash(model): os.abort()
        def test_after(model): assert model.weight.is_cuda
        """
    )
    result = pytester.runpytest_subprocess("--cuda-fork-check")
    result.assert_outcomes(passed=4, failed=1)
    assert len((pytester.path / "loads").read_text().split()) == 2


@pytest.mark.parametrize("method", METHODS)
def test_a_kernel_that_fails_poisons_no_other_test(pytester: pytest.Pytester, method: str) -> None:
    pytester.makepyfile(
        """
        import torch
        def test_out_of_bounds():
            source = torch.zeros(4, device="cuda")
            index = torch.tensor([10**6], device="cuda")
            source[index].sum().item()
        def test_after(): assert torch.ones(4, device="cuda").sum().item() == 4
        """
    )
    result = pytester.runpytest_subprocess(f"--cuda-fork-isolate={method}")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines_random(["*device-side assert triggered*"])
