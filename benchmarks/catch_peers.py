"""A plugin for the specimens' sessions: what others would have answered before each fork.

It asks and writes down, and changes nothing. Asked are torch's flag, the driver, and what vLLM's
guard asks before it chooses how to start a process. Loaded with ``-p benchmarks.catch_peers``, or
imported by ``sitecustomize`` in programs that the session starts. The answers go, a line of JSON
each, to the file that the environment names.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing.process
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

ANSWERS = "CATCH_RATE_ANSWERS"
"""Environment variable: the file to which the answers are appended."""

PEERS = ("torch", "driver", "vllm")
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED


def torch_flag() -> bool:
    """Whether torch, if it is imported, says that it has initialized CUDA."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def driver_probe() -> bool:
    """Whether the driver, if it is loaded, answers a question that it refuses before cuInit."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return False
    count = ctypes.c_int()
    return int(driver.cuDeviceGetCount(ctypes.byref(count))) != _NOT_INITIALIZED


def vllm_guard() -> bool:
    """Whether vLLM's guard would turn this fork into a spawn because of CUDA.

    It is asked where a process of multiprocessing is made: whether torch is built with CUDA
    and, if so, what its flag says. Its other reasons (Ray, XPU, WSL, NUMA) are none of CUDA's.
    """
    torch = sys.modules.get("torch")
    if not _starts_by_multiprocessing() or torch is None or not torch.cuda._is_compiled():
        return False
    return bool(torch.cuda.is_initialized())


_QUESTIONS: dict[str, Callable[[], bool]] = {
    "torch": torch_flag,
    "driver": driver_probe,
    "vllm": vllm_guard,
}


def _starts_by_multiprocessing() -> bool:
    """Whether ``Process.start`` is on the stack."""
    frame = sys._getframe()
    start = multiprocessing.process.BaseProcess.start.__code__
    while frame.f_back is not None:
        if frame.f_code is start:
            return True
        frame = frame.f_back
    return False


def ask(moment: str) -> None:
    """Ask all of them, and append what they say."""
    answers: dict[str, Any] = {name: question() for name, question in _QUESTIONS.items()}
    line = json.dumps({"moment": moment, "pid": os.getpid(), **answers}) + "\n"
    with open(os.environ[ANSWERS], "a", encoding="utf-8") as file:
        file.write(line)


def _before_fork() -> None:
    ask("fork")


def _begin() -> None:
    """Ask from now on, here and in the Python programs that this process starts."""
    os.register_at_fork(before=_before_fork)
    folder = os.path.dirname(os.environ[ANSWERS])  # its sitecustomize.py imports this module
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, paths)])


if os.environ.get(ANSWERS):
    _begin()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Ask after the collection, as a test would that imports have not initialized CUDA."""
    try:
        return (yield)
    finally:
        ask("collected")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Ask after each test."""
    try:
        return (yield)
    finally:
        ask("tested")
