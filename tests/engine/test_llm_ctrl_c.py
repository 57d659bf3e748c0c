"""Ctrl-C at each place at which Python runs the handler of a signal, one after the other."""

from __future__ import annotations

import itertools
import signal

import pytest

from sample_engine import LLM, SamplingParams
from tests.engine.support.process import Script
from tests.support.signal_at import SignalAt

_STOPS = SamplingParams(max_tokens=1_000, stop=("cab",))
"""The core does not know of the end: the front end tells it, after an interrupt, too."""


@pytest.mark.parametrize(("method", "every"), [("inproc", 1), ("fork", 7)])
def test_wherever_it_comes_the_engine_goes_on_and_nothing_is_left_in_the_core(
    method: str, every: int
) -> None:
    interrupted = 0
    with LLM(worker_method=method, device="cpu", core_factory=Script()) as llm:
        for number in itertools.count(1, every):
            at, raised = SignalAt(number, signal.SIGINT), None
            try:
                with at:
                    llm.generate(["abc", "cab"], _STOPS)
            except KeyboardInterrupt as error:
                raised = error  # with its traceback, as a notebook keeps it
            if not at.sent:
                break
            interrupted += raised is not None
            # the next call would wait for ever for a lock that was left taken
            assert llm._turns.lock.acquire(timeout=5), f"at {number}: {raised!r}"
            llm._turns.lock.release()
            assert llm.metrics()["unfinished"] == [], f"at {number}"
            assert llm._live == {}
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert interrupted > 20
