"""``python -m pytest_cudafork attach PID``: its arguments, what it prints, its exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

from pytest_cudafork.attach.examine import Examined, Member, examine, to_plain
from pytest_cudafork.attach.target import Unreadable
from pytest_cudafork.documents.form import head
from pytest_cudafork.documents.writing import print_json, printable
from pytest_cudafork.observe.driver.probe import Verdict
from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.observe.story.words import fork_line, headline, indent, touch_lines
from pytest_cudafork.settings.option import typed

USABLE, POISONED, USAGE = 0, 1, 2
_MOST_FRAMES = 12


def main(args: Sequence[str]) -> int:
    """Read a process and print what is known of CUDA in it.

    Args:
        args: What follows ``python -m pytest_cudafork attach``.

    Returns:
        0: it was read. 1: CUDA can never be used in it, or in one that descends from it. 2: the
        arguments are wrong, or it cannot be read.

    """
    parser = _parser()
    given = parser.parse_args(args)
    if sys.platform != "linux":
        parser.exit(USAGE, f"{parser.prog}: error: it works on Linux only, not {sys.platform}\n")
    try:
        found = examine(given.pid, given.ledger, stacks=not given.no_stacks)
    except (Unreadable, OSError) as error:
        parser.exit(USAGE, f"{parser.prog}: error: {plain(str(error))}\n")
    if given.json:
        print_json({**head("attach"), **to_plain(found)})
    else:
        sys.stdout.write(printable("\n".join(lines_of(found))) + "\n")
    return POISONED if found.poisoned else USABLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_cudafork attach",
        description="Say of a process that runs whether CUDA is initialized in it, by which line, "
        "where its threads are, and which of its children can never use CUDA. It is only read. "
        "Exit status: 0 when it was read, 1 if CUDA can never be used in it or in a child, 2 on "
        "wrong usage or where it cannot be read.",
    )
    add = parser.add_argument
    add("pid", metavar="PID", type=typed(parse_pid), help="the number of the process")
    add("--ledger", metavar="FILE", default="",
        help="The ledger of its session, where its environment does not name it.")  # fmt: skip
    add("--json", action="store_true", help="Write it as JSON.")
    add("--no-stacks", action="store_true", help="Leave the stacks of its threads out.")
    return parser


def parse_pid(text: str) -> int:
    """Read the number of a process.

    Raises:
        ValueError: It is none.

    """
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 31):
        raise ValueError(f"{text!r} is not the number of a process")
    return int(text)


def lines_of(found: Examined) -> Iterator[str]:
    """Give the lines that tell what was read."""
    target, state = found.member
    yield f"process {target.pid}: {plain(target.command) or plain(target.program)}"
    yield f"  Python: {_python(found)}"
    yield f"  ledger: {found.ledger or 'none is known, so that no line can be told'}"
    yield f"  CUDA: {state.verdict.value}: {state.why}"
    if state.touch is not None:
        yield "  initialized by"
        yield from indent(touch_lines(state.touch, advice=False))
    if state.fork:
        yield "  forked by"
        yield from indent([fork_line(state.fork)])
    yield from _threads(found)
    yield from _children(found)


def _python(found: Examined) -> str:
    path = found.member.target.python
    if not path:
        return f"none: it runs {plain(found.member.target.program)}"
    own = os.path.realpath(sys.executable)
    other = os.path.realpath(path) != own
    return f"{plain(path)} (another one than this, {own})" if other else path


def _threads(found: Examined) -> Iterator[str]:
    if found.why_no_stacks:
        yield f"  no Python stacks: {plain(found.why_no_stacks)}"
    if not found.stacks:
        yield from (f"  {plain(line)}" for line in found.threads.splitlines())
        return
    states = {line.split()[1]: line.rpartition("): ")[2] for line in found.threads.splitlines()}
    for stack in found.stacks:
        state = states.get(str(stack.thread), "")
        name = f" ({plain(stack.name)})" if stack.name else ""
        yield f"  thread {stack.thread}{name}{f': {state}' if state else ''}"
        yield from (f"    {plain(frame)}" for frame in stack.frames[:_MOST_FRAMES])
        if len(stack.frames) > _MOST_FRAMES:
            yield f"    ... and {len(stack.frames) - _MOST_FRAMES} more"


def _children(found: Examined) -> Iterator[str]:
    poisoned = [each for each in found.descendants if each.state.verdict is Verdict.POISONED]
    others = len(found.descendants) - len(poisoned)
    if not poisoned:
        count = f"{others} descend from it" if others else "it has none"
        yield f"  children that can never use CUDA: none ({count})"
    else:
        yield "  children that can never use CUDA:"
        for each in poisoned:
            yield from indent(_child_lines(each))
        if others:
            yield f"  {others} more descend from it"
    for each in found.descendants:
        if each.state.verdict is Verdict.NOT_OBSERVABLE:
            yield f"  not known of process {each.target.pid}: {each.state.why}"
    for words in found.unreadable:
        yield f"  not known: {plain(words)}"


def _child_lines(member: Member) -> Iterator[str]:
    target, state = member
    yield f"process {target.pid}: {plain(target.command)}"
    yield f"  {state.why}"
    if state.fork:
        yield f"  forked by {fork_line(state.fork)}"
    if state.touch is not None:
        yield f"  initialized at {headline(state.touch)}"
