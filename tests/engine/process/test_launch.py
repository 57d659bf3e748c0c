"""What a start changes for a moment is put back, although two threads start at once."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.config import WorkerMethod
from sample_engine.errors import ConfigError
from sample_engine.llm import LLM
from sample_engine.process import launch as launch_module
from sample_engine.process.launch import launch
from tests.engine.support.process import HANG_SECONDS, Script, children

METHODS = [WorkerMethod.FORK, WorkerMethod.SPAWN]


class NoProcess:
    """Stands for a process; looks at what is there while it is started."""

    main: Any = None
    under_way = 0
    most = 0

    def __init__(self, **_: Any) -> None:
        pass

    def start(self) -> None:
        """Start nothing, and take a while."""
        cls = type(self)
        cls.under_way += 1
        cls.most = max(cls.most, cls.under_way)
        cls.main = sys.modules["__main__"]
        time.sleep(0.01)
        cls.under_way -= 1


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> type[NoProcess]:
    made = type("made", (NoProcess,), {})
    context = SimpleNamespace(Process=made)
    monkeypatch.setattr(launch_module, "get_mp_context", lambda _: context)
    return made


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.value)
def test_threads_start_cores_one_after_the_other(
    method: WorkerMethod, no_process: type[NoProcess]
) -> None:
    main = sys.modules["__main__"]
    threads = [threading.Thread(target=launch, args=(method, print, ())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert no_process.most == 1
    assert sys.modules["__main__"] is main
    assert (no_process.main is main) is (method is WorkerMethod.FORK)


def test_a_forked_child_does_not_wait_for_a_thread_that_it_lacks(
    no_process: type[NoProcess],
) -> None:
    taken, go = threading.Event(), threading.Event()

    def hold() -> None:
        with launch_module._one_at_a_time:
            taken.set()
            go.wait(HANG_SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert taken.wait(HANG_SECONDS)
        pid = os.fork()
        if pid == 0:
            got = launch_module._one_at_a_time.acquire(timeout=10)
            os._exit(0 if got else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        go.set()
        thread.join()


def _unpicklable() -> list[Any]:
    """What no other process can be handed: of a function, with a lock, and what refuses it."""

    def local(config: Any) -> None:
        del config

    class Refuses:
        def __reduce__(self) -> str:
            raise pickle.PicklingError("not this one")

    return [local, lambda config: None, partial(print, threading.Lock()), partial(print, Refuses())]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_cannot_be_handed_to_a_core_is_refused_and_nothing_is_left(method: str) -> None:
    gc.collect()  # what earlier tests have left may be closed at any time
    before = children()
    for number, factory in enumerate(_unpicklable()):
        with pytest.raises(ConfigError, match=f"cannot be handed to a process .* '{method}': "):
            LLM(core_factory=factory, worker_method=method)
        if number == 0:  # what helps multiprocessing stays
            descriptors, after = os.listdir("/proc/self/fd"), children()
    assert os.listdir("/proc/self/fd") == descriptors
    assert children() <= after  # an earlier test's may end meanwhile
    assert len(after - before) <= 2


def test_a_fork_is_handed_what_cannot_be_pickled() -> None:
    script = Script(tokens_per_step=2)
    with LLM(core_factory=lambda config: script(config), worker_method="fork") as llm:
        assert llm.generate("ab", SamplingParams(max_tokens=3)).pop().text == "aba"
