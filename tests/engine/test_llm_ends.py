"""How an engine ends under a call: shut down by another thread, forked away, crashed, refused."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from sample_engine import LLM, SamplingParams
from sample_engine.errors import EngineDeadError
from tests.engine.support.process import (
    EVENTS,
    HANG_SECONDS,
    Script,
    children,
    is_running,
    wait_until,
    wait_until_gone,
)
from tests.engine.support.programs import run_python

ENDLESS = SamplingParams(max_tokens=10**9)


def shut_down_when(
    llm: LLM, condition: Callable[[], bool]
) -> tuple[threading.Thread, list[BaseException]]:
    """Shut an engine down from another thread; what that raises is in the list."""
    raised: list[BaseException] = []

    def end() -> None:
        try:
            wait_until(condition, "the calls are under way")
            llm.shutdown()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=end)
    thread.start()
    return thread, raised


@pytest.mark.parametrize("method", ["inproc", "fork", "spawn", "forkserver"])
def test_a_shutdown_from_another_thread_ends_a_call_and_says_so(method: str) -> None:
    before = children()
    llm = LLM(worker_method=method, device="cpu", core_factory=Script(step_seconds=0.01))
    # The first prompt has been completed, and the second one is under way.
    thread, raised = shut_down_when(llm, lambda: list(llm._live) == ["1"])
    with pytest.raises(EngineDeadError, match="was shut down: make a new engine") as caught:
        llm.generate(["ab", "cd"], [SamplingParams(max_tokens=2), ENDLESS])
    thread.join(HANG_SECONDS)
    assert not thread.is_alive()
    assert raised == []
    assert [output.text for output in caught.value.outputs] == ["ab"]
    assert not children() - before


def test_a_shutdown_ends_the_calls_of_all_threads() -> None:
    llm = LLM(worker_method="fork", device="cpu", core_factory=Script(step_seconds=0.01))
    said: list[str] = []

    def complete() -> None:
        try:
            llm.generate("ab", ENDLESS)
        except EngineDeadError as error:
            said.append(str(error))

    threads = [threading.Thread(target=complete) for _ in range(3)]
    for thread in threads:
        thread.start()
    ending, raised = shut_down_when(llm, lambda: len(llm._live) == len(threads))
    for thread in [*threads, ending]:
        thread.join(HANG_SECONDS)
    assert raised == []
    assert len(said) == 3
    assert all("was shut down: make a new engine" in text for text in said)


def test_a_signal_handler_may_shut_down_what_its_own_thread_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    front_end = os.getpid()
    monkeypatch.setitem(EVENTS, "alarm", lambda: os.kill(front_end, signal.SIGALRM))
    script = Script(at_step="alarm", step_number=5)
    llm = LLM(worker_method="fork", device="cpu", core_factory=script)
    pid = llm.info()["core_pid"]
    before = signal.signal(signal.SIGALRM, lambda *_: llm.shutdown())
    try:
        with pytest.raises(EngineDeadError, match="was shut down: make a new engine"):
            llm.generate("ab", ENDLESS)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not is_running(pid)


def test_an_engine_that_was_shut_down_cannot_be_entered() -> None:
    for method in ("inproc", "fork"):
        llm = LLM(worker_method=method, device="cpu", core_factory=Script())
        llm.shutdown()
        with pytest.raises(EngineDeadError, match="was shut down: make a new engine"), llm:
            pytest.fail("it was entered")


@pytest.mark.parametrize("method", ["inproc", "fork"])
@pytest.mark.parametrize("lock", ["free", "taken"])
def test_a_forked_child_is_told_that_the_core_is_not_its_own(method: str, lock: str) -> None:
    with LLM(worker_method=method, device="cpu", core_factory=Script()) as llm:
        if lock == "taken":  # by another thread, which a fork does not copy
            llm._turns.lock.acquire()
        pid = os.fork()
        if pid == 0:
            code = 1
            signal.alarm(int(HANG_SECONDS))
            try:
                llm.generate("a")
            except EngineDeadError as error:
                code = 0 if "from which this one was forked: make a new" in str(error) else 2
            finally:
                llm.shutdown()
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        if lock == "taken":
            llm._turns.lock.release()
        assert llm.generate("ab", SamplingParams(max_tokens=3))[0].text == "aba"


def test_a_crash_is_told_in_full_once_and_then_referred_to() -> None:
    with LLM(worker_method="fork", device="cpu", core_factory=Script(at_step="crash")) as llm:
        with pytest.raises(EngineDeadError) as caught:
            llm.generate("a", ENDLESS)
        assert "was killed by SIGSEGV.\nIt last wrote on its stderr:" in str(caught.value)
        assert "in _crash" in str(caught.value)
        for call in (lambda: llm.generate("a"), llm.metrics):
            with pytest.raises(EngineDeadError) as again:
                call()
            assert "was killed by SIGSEGV. The first error that told of it" in str(again.value)
            assert "\n" not in str(again.value)


def test_a_crash_that_an_abort_meets_is_told_in_full_by_the_next_call() -> None:
    with LLM(worker_method="fork", device="cpu", core_factory=Script(step_seconds=0.02)) as llm:
        stream = llm.generate_stream("a", ENDLESS)
        next(stream)
        pid = llm.info()["core_pid"]
        os.kill(pid, signal.SIGSEGV)
        wait_until_gone(pid)
        stream.close()  # type: ignore[attr-defined]
        with pytest.raises(EngineDeadError, match=r"SIGSEGV\.\nIt last wrote on its stderr:"):
            llm.generate("a")


REFUSED = """
import sys
from sample_engine import LLM, ConfigError
for settings in (
    {"model": "nope"},
    {"max_model_len": 10**6},
    {"device": "cuda:77"},
    {"speculative_config": {"method": "engram", "num_speculative_tokens": 2}},
):
    try:
        LLM(worker_method="fork", **settings)
    except ConfigError as error:
        started = "multiprocessing.popen_fork" in sys.modules
        print(str(error).split()[0], "torch" in sys.modules, started)
"""


def test_what_can_be_known_is_refused_before_a_core_is_started() -> None:
    assert run_python(REFUSED).stdout == (
        "model='nope' False False\n"
        "max_model_len=1000000 False False\n"
        "device='cuda:77' False False\n"
        "speculative_config: False False\n"
    )


def test_a_refusal_of_the_core_is_a_short_traceback() -> None:
    code = (
        "from sample_engine import LLM\nLLM(worker_method='fork', device='cpu', model='llama-3-8b')"
    )
    done = run_python(code)
    assert "sample_engine.WeightsError: model='llama-3-8b' is a shape" in done.stderr
    assert done.stderr.count("Traceback") == 1
