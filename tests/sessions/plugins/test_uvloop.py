"""Programs that coroutines start while CUDA is initialized, by asyncio's own loop and uvloop."""

from __future__ import annotations

import importlib.util

import pytest

from tests.support.sessions import run_session

TESTS = """
import asyncio, ctypes, os, sys
import pytest
import uvloop

RUNNERS = [asyncio.run, uvloop.run]

def touch():
    ctypes.CDLL("libcuda.so.1").cuInit(0)  # 100: the phantom has no GPU

async def started(by_shell=False):
    touch()
    start = asyncio.create_subprocess_shell if by_shell else asyncio.create_subprocess_exec
    process = await start(*(["echo 1"] if by_shell else ["echo", "1"]), stdout=-1)
    return await process.communicate()

@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize("by_shell", [False, True])
def test_starts(run, by_shell):
    assert run(started(by_shell)) == (b"1\\n", None)

@pytest.mark.parametrize("run", RUNNERS)
def test_forks(run):
    async def forks():
        touch()
        os.fork()
    run(forks())

FORK = [os.fork]  # a reference that the guard has not replaced

@pytest.mark.parametrize("run", RUNNERS)
def test_child_touches(run):
    async def forks():
        touch()
        pid = FORK[0]()
        if pid == 0:
            touch()
            os._exit(0)
        os.waitpid(pid, 0)
    run(forks())
"""


def test_a_program_that_a_coroutine_starts_is_no_fork_under_either_loop(
    pytester: pytest.Pytester,
) -> None:
    if importlib.util.find_spec("uvloop") is None:
        pytest.skip("uvloop is not installed")
    pytester.makepyfile(TESTS)
    result = run_session(pytester, "--cuda-fork-check", "-v")
    result.assert_outcomes(passed=4, failed=4)
    result.stdout.fnmatch_lines(["*::test_forks[[]run1] FAILED*"])
    result.stdout.fnmatch_lines(["*::test_child_touches[[]run1] FAILED*"])
