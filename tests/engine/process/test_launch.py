"""What a start changes for a moment is put back, although two threads start at once."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from sample_engine.config import WorkerMethod
from sample_engine.process import launch as launch_module
from sample_engine.process.launch import launch
from tests.engine.support.process import HANG_SECONDS

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
