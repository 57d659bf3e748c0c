"""A process, those that it was forked from and those that descend from it, judged together."""

from __future__ import annotations

from typing import Any, NamedTuple

from pytest_cudafork.attach.target import Target, Unreadable, read_target
from pytest_cudafork.attach.verdict import State, judge, read_history, users_of_gpus
from pytest_cudafork.observe.driver.probe import Verdict
from pytest_cudafork.observe.story.words import headline, place_of
from pytest_cudafork.process.descendants.leftovers import descendants
from pytest_cudafork.process.native_stacks import PythonStack, python_stacks, thread_states


class Member(NamedTuple):
    """A process and what is known of CUDA in it."""

    target: Target
    state: State


class Examined(NamedTuple):
    """What was read of a process.

    Attributes:
        member: The process itself.
        descendants: Those that descend from it and can be read, oldest first.
        unreadable: Why of others nothing can be said, and what the ledger lacks, in words.
        ledger: The ledger that was read; "" for none.
        stacks: The Python stacks of its threads.
        why_no_stacks: Where there are none: why.
        threads: What the kernel says of its threads, a line for each.

    """

    member: Member
    descendants: tuple[Member, ...]
    unreadable: tuple[str, ...]
    ledger: str
    stacks: tuple[PythonStack, ...]
    why_no_stacks: str
    threads: str

    @property
    def poisoned(self) -> bool:
        """Whether CUDA can never be used in it, or in one that descends from it."""
        members = (self.member, *self.descendants)
        return any(each.state.verdict is Verdict.POISONED for each in members)


def examine(pid: int, ledger: str = "", *, stacks: bool = True) -> Examined:
    """Read a process; nothing is asked of it, and nothing is changed.

    Args:
        pid: Its number.
        ledger: The ledger of its session; "" for the one that it, or one of its kin, was told of.
        stacks: Whether the stacks of its threads are read.

    Raises:
        Unreadable: It cannot be looked at.
        OSError: The ledger cannot be read, or is none.

    """
    target = read_target(pid)
    above = _forked_from(target)
    below, unreadable = _below(pid)
    everybody = [target, *above, *below]
    path = ledger or next((each.ledger for each in everybody if each.ledger), "")
    history, lost = read_history(path)
    users = users_of_gpus() if any(each.driver for each in everybody) else None
    states: dict[int, State] = {}
    for each in (*reversed(above), target, *below):
        states[each.pid] = judge(each, history, users, states)
    found, why_not = ((), "") if not stacks else _stacks_of(target)
    return Examined(
        Member(target, states[pid]),
        tuple(Member(each, states[each.pid]) for each in below),
        (*unreadable, *lost),
        path,
        found,
        why_not,
        thread_states(pid),
    )


def _forked_from(target: Target) -> list[Target]:
    """Return the processes whose image it runs, nearest first, as far as they can be read."""
    found: list[Target] = []
    while target.forked is True:
        try:
            target = read_target(target.parent)
        except Unreadable:
            break
        found.append(target)
    return found


def _below(pid: int) -> tuple[list[Target], list[str]]:
    found, unreadable = [], []
    for child in sorted(descendants(pid)):
        try:
            found.append(read_target(child))
        except Unreadable as error:
            unreadable.append(str(error))
    return sorted(found, key=lambda each: (each.started, each.pid)), unreadable


def _stacks_of(target: Target) -> tuple[tuple[PythonStack, ...], str]:
    if not target.python:
        return (), f"it runs no Python: {target.program}"
    return python_stacks(target.pid)


def to_plain(examined: Examined) -> dict[str, Any]:
    """Return what was read as texts, numbers, lists and dicts."""
    return {
        **_member(examined.member),
        "descendants": [_member(each) for each in examined.descendants],
        "unreadable": list(examined.unreadable),
        "ledger": examined.ledger,
        "threads": examined.threads.splitlines(),
        "stacks": [each._asdict() for each in examined.stacks],
        "why_no_stacks": examined.why_no_stacks,
    }


def _member(member: Member) -> dict[str, Any]:
    target, state = member
    return {
        "pid": target.pid,
        "command": target.command,
        "python": target.python,
        "parent": target.parent,
        "driver": target.driver,
        "cuda": state.verdict.value,
        "why": state.why,
        "initialized_at": headline(state.touch) if state.touch is not None else "",
        "forked_at": place_of(state.fork) if state.fork else "",
    }
