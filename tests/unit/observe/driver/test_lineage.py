"""The record of forks, in real children; each tells by its exit status."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from pytest_cudafork.observe.driver.lineage import Lineage, process_lineage
from tests.support.sessions import run_python


def in_a_child(check: Callable[[], bool]) -> bool:
    """Whether a check holds in a child that is forked now."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class Told(list[str]):
    """The functions that have forked and were not announced; none goes on to exec."""

    def take(self, frame: FrameType) -> bool:
        """Take one."""
        self.append(frame.f_code.co_name)
        return False


@pytest.fixture(scope="module")
def lineage() -> Lineage:
    """The one record of this process: at-fork handlers cannot be taken back."""
    return process_lineage()


@pytest.fixture(autouse=True)
def as_it_was(lineage: Lineage) -> object:
    """Give the record back as it was."""
    before = lineage.unclean, lineage.on_poisoned_child, lineage.next_fork
    guard, lineage.on_unguarded_fork = lineage.on_unguarded_fork, None
    yield
    lineage.unclean, lineage.on_poisoned_child, lineage.next_fork = before
    lineage.on_unguarded_fork = guard


def test_a_process_has_one_record(lineage: Lineage) -> None:
    assert process_lineage() is lineage


def test_a_child_of_a_clean_process_is_clean(lineage: Lineage) -> None:
    lineage.unclean = lambda: False
    assert in_a_child(lambda: lineage.poisoned_by is None)


def test_a_child_of_an_initialized_process_knows_its_parent_and_its_fork(
    lineage: Lineage,
) -> None:
    here, told = os.getpid(), []
    lineage.unclean = lambda: True
    lineage.next_fork = "7-1"
    lineage.on_poisoned_child = lambda: told.append(os.getpid())

    def check() -> bool:
        known = (lineage.poisoned_by, lineage.forked_by, lineage.next_fork)
        return known == (here, "7-1", "") and told == [os.getpid()]

    assert in_a_child(check)
    assert lineage.poisoned_by is None
    assert lineage.next_fork == "", "a later fork is another one"


def test_grandchildren_are_poisoned_by_the_child(lineage: Lineage) -> None:
    lineage.unclean = lambda: True

    def check() -> bool:
        lineage.unclean = lambda: False
        child = os.getpid()
        return in_a_child(lambda: lineage.poisoned_by == child)

    assert in_a_child(check)


def test_a_child_that_was_not_announced_knows_no_fork(lineage: Lineage) -> None:
    lineage.unclean = lambda: True
    assert in_a_child(lambda: lineage.forked_by == "")


def test_a_fork_that_nobody_has_announced_is_told_before_it_happens(lineage: Lineage) -> None:
    told = Told()
    lineage.on_unguarded_fork = told.take
    lineage.unclean = lambda: False
    assert in_a_child(lambda: True)
    lineage.unclean = lambda: True
    lineage.next_fork = "7-1"
    assert in_a_child(lambda: True)
    assert not told
    assert in_a_child(lambda: told == ["in_a_child"])
    assert told == ["in_a_child"]


def test_a_child_knows_whether_it_was_forked_for_the_sake_of_an_exec(lineage: Lineage) -> None:
    lineage.unclean = lambda: True
    lineage.on_unguarded_fork = lambda frame: True
    assert in_a_child(lambda: lineage.starts_program)
    assert not lineage.starts_program
    lineage.next_fork = "7-1"
    assert in_a_child(lambda: not lineage.starts_program)
    lineage.on_unguarded_fork = lambda frame: False
    assert in_a_child(lambda: not lineage.starts_program)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of Python 3.12 on
def test_forks_of_two_threads_are_told_apart(lineage: Lineage) -> None:
    told = Told()
    seen: list[bool] = []
    announced, go_on = threading.Event(), threading.Event()
    lineage.on_unguarded_fork = told.take
    lineage.unclean = lambda: True

    def fork_later() -> None:
        lineage.next_fork = "7-1"
        announced.set()
        go_on.wait()
        seen.append(in_a_child(lambda: lineage.forked_by == "7-1"))

    other = threading.Thread(target=fork_later)
    other.start()
    announced.wait()
    lineage.next_fork = "7-2"
    assert in_a_child(lambda: (lineage.forked_by, lineage.next_fork) == ("7-2", ""))
    assert in_a_child(lambda: lineage.forked_by == "")
    assert told == ["in_a_child"]
    go_on.set()
    other.join()
    assert seen == [True]
    assert told == ["in_a_child"], "the other thread's was announced"


NEAR_THE_LIMIT = """
import os, sys
from pytest_cudafork.observe.driver.lineage import process_lineage

lineage, said = process_lineage(), {}

def initialized(more=3):
    return not more or initialized(more - 1)

def forked_after(frames):
    if frames:
        return forked_after(frames - 1)
    pid = os.fork()
    if pid == 0:
        status = 4
        try:
            status = 3 if lineage.poisoned_by is not None else 2 if lineage.forked_unwatched else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

for left in range(30, 0, -1):
    lineage.unclean = lambda: False
    assert forked_after(0) == 1
    lineage.unclean = initialized
    try:
        said[left] = forked_after(sys.getrecursionlimit() - left)
    except RecursionError:
        pass
print(len(said) > 20, sorted(set(said.values()) - {4}))  # 4: there was no room to say it
"""


def test_a_child_in_which_no_handler_ran_was_not_watched(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "_process", os.getppid())
    assert lineage.forked_unwatched


def test_a_child_is_never_called_clean_as_the_stack_has_no_room_to_ask(tmp_path: Path) -> None:
    assert run_python(NEAR_THE_LIMIT, tmp_path) == "True [2, 3]\n"
