"""A suite with every outcome, in every kind of process: what `tools/compatibility.py` runs."""

import ctypes
import multiprocessing
import os
import time

import pytest


def double(number):
    """Return twice the number; called in a child process."""
    return 2 * number


def test_passes():
    assert double(2) == 4


@pytest.mark.parametrize("number", [1, 2])
def test_parametrized(number, tmp_path):
    (tmp_path / "out").write_text(str(number))
    time.sleep(0.001)
    assert (tmp_path / "out").read_text() == str(number)


@pytest.mark.skip(reason="skipped as meant")
def test_skipped():
    raise AssertionError


@pytest.mark.xfail(reason="fails as meant", strict=True)
def test_expected_failure():
    raise AssertionError


@pytest.mark.cuda_isolated(method="fork")
def test_in_a_fork():
    assert double(4) == 8


@pytest.mark.cuda_isolated(method="forkserver")
def test_in_a_child_of_the_fork_server():
    assert double(8) == 16


@pytest.mark.spawn_only
def test_in_a_fresh_interpreter():
    assert double(16) == 32


@pytest.mark.cuda_isolated(method="fork")
def test_dies():
    os.kill(os.getpid(), 9)


def test_a_function_in_a_child(run_spawned):
    assert run_spawned(double, 21) == 42


@pytest.mark.cuda_isolated(method="fork")
def test_a_fork_after_cuda():
    ctypes.CDLL("libcuda.so.1").cuInit(0)
    multiprocessing.get_context("fork").Process(target=double, args=(1,)).start()
