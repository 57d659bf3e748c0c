"""Ranks in lock-step: what rank 0 tells, what another one does, and the watch over steps."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe

import pytest

from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.config import EngineConfig
from sample_engine.errors import EngineError, PromptError, RankLostError
from sample_engine.process import lock_step
from sample_engine.process.lock_step import LeadingCore, StepWatch, follow, may_be_eager
from sample_engine.process.messages import (
    MOST_BYTES,
    Abort,
    Add,
    MessageError,
    Step,
    Stop,
    ToRank,
    decode_to_rank,
    encode,
)
from tests.engine.support.process import Script

PARAMS = SamplingParams(max_tokens=2)


@pytest.fixture
def pipe() -> Iterator[tuple[Connection, Connection]]:
    """Rank 0's end and the other one's."""
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


def unused(text: str, stack: str) -> None:
    """Nothing is stuck here."""
    raise AssertionError(f"{text}\n{stack}")


@pytest.fixture
def watch() -> Iterator[StepWatch]:
    """A watch whose time never comes. Its thread does not outlive the test."""
    with contextlib.closing(StepWatch(3600, unused)) as made:
        yield made


def heard(link: Connection) -> list[ToRank]:
    """What has been said."""
    found = []
    while link.poll(0):
        found.append(decode_to_rank(link.recv_bytes(MOST_BYTES)))
    return found


def test_rank_0_tells_what_it_takes_and_not_what_it_refuses(
    pipe: tuple[Connection, Connection], watch: StepWatch
) -> None:
    ours, theirs = pipe
    own = Script()(EngineConfig())
    core = LeadingCore(own, [ours], watch)
    core.add_request("a", (1, 2), PARAMS)
    with pytest.raises(PromptError):
        core.add_request("b", [], PARAMS)
    core.step()
    (last,) = core.step()
    assert last.new_token_ids == (2,)
    assert not core.has_unfinished()
    core.abort(["a"])
    core.shutdown()
    assert own.was_shut_down
    assert core.metrics()["aborted"] == ["a"]
    assert core.info()["model"] == "scripted"
    # The word for a step says what the one before came to.
    assert heard(theirs) == [Add("a", [1, 2], PARAMS), Step(0), Step(1), Abort(["a"]), Stop()]


def test_a_rank_that_does_not_hear_is_an_error_that_names_it(
    pipe: tuple[Connection, Connection], watch: StepWatch
) -> None:
    ours, theirs = pipe
    theirs.close()
    core = LeadingCore(Script()(EngineConfig()), [ours], watch)
    with pytest.raises(RankLostError, match="Rank 1 does not hear rank 0"):
        core.step()


@pytest.mark.parametrize("eager", [False, True])
def test_another_rank_does_what_it_is_told(
    eager: bool, pipe: tuple[Connection, Connection], watch: StepWatch
) -> None:
    ours, theirs = pipe
    core = Script()(EngineConfig())
    for message in (Add("a", [1, 2], PARAMS), Step(0), Abort(["a"]), Step(1), Stop()):
        ours.send_bytes(encode(message))
    follow(core, theirs, watch, eager=eager)
    assert core.metrics()["steps"] == 2
    assert core.aborted == ["a"]
    assert core.was_shut_down


def test_an_eager_rank_waits_for_a_word_that_comes_late(
    pipe: tuple[Connection, Connection], watch: StepWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pipe
    core = Script()(EngineConfig())
    core.add_request("a", [1, 2], PARAMS)
    looks = []

    def look_out(link: Connection) -> None:
        looks.append(link)
        lock_step_look_out(link)  # nobody speaks: it ends by itself
        ours.send_bytes(encode(Step(0) if len(looks) == 1 else Stop()))

    lock_step_look_out = lock_step._look_out
    monkeypatch.setattr(lock_step, "_look_out", look_out)
    follow(core, theirs, watch, eager=True)
    assert looks == [theirs, theirs]
    assert core.metrics()["steps"] == 1
    assert core.was_shut_down


@pytest.mark.parametrize(
    ("device", "processors", "eager"),
    [("cuda:0", 3, True), ("cuda:0", 2, False), ("cpu", 64, False), (None, 64, False)],
)
def test_a_rank_is_eager_on_a_gpu_with_processors_to_spare(
    device: str | None, processors: int, eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = Script()(EngineConfig())
    monkeypatch.setattr(core, "info", lambda: {} if device is None else {"device": device})
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(processors)))
    assert may_be_eager(core, 2) is eager


def test_another_rank_ends_without_a_word_when_rank_0_is_gone(
    pipe: tuple[Connection, Connection], watch: StepWatch
) -> None:
    ours, theirs = pipe
    core = Script()(EngineConfig())
    ours.send_bytes(encode(Step(0)))
    ours.close()
    follow(core, theirs, watch)
    assert core.metrics()["steps"] == 1
    assert not core.was_shut_down


def test_ranks_that_came_to_different_ends_do_not_go_on(
    pipe: tuple[Connection, Connection], watch: StepWatch
) -> None:
    ours, theirs = pipe
    core = Script()(EngineConfig())
    for message in (Step(0), Step(7)):
        ours.send_bytes(encode(message))
    with pytest.raises(EngineError, match=r"something else than that of rank 0 \(1 and 7\)"):
        follow(core, theirs, watch)
    assert core.metrics()["steps"] == 1


def test_what_is_no_message_is_an_error(
    pipe: tuple[Connection, Connection], watch: StepWatch
) -> None:
    ours, theirs = pipe
    ours.send_bytes(b"hello")
    with pytest.raises(MessageError, match="from rank 0"):
        follow(Script()(EngineConfig()), theirs, watch)


def test_a_step_without_end_is_told_with_the_stack_and_a_short_one_is_not() -> None:
    told: list[tuple[str, str]] = []
    over = threading.Event()

    def tell(text: str, stack: str) -> None:
        told.append((text, stack))
        over.set()

    with contextlib.closing(StepWatch(0.5, tell)) as guard:
        for _ in range(100):
            with guard.step():
                pass
        with guard.step():
            assert over.wait(120)
    ((text, stack),) = told
    assert text == "A step has not ended for 0.5 seconds."
    assert "in test_a_step_without_end" in stack
