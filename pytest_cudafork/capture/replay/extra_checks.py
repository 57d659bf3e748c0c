"""Checks beside the rounds: random numbers, memory that nobody filled, padding over live rows."""

from __future__ import annotations

from typing import Any

from pytest_cudafork.capture.replay.observed import Filled, collisions, filling
from pytest_cudafork.capture.replay.subject import Before, Subject
from pytest_cudafork.capture.state.compare import Difference, Tolerance, differences, frozen_copy
from pytest_cudafork.capture.story.findings import CheckLog


def randomness(subject: Subject, log: CheckLog, *, cuda: bool) -> int:
    """Check that each replay draws other numbers, if eager code does; return how many it took."""
    log.did("rng-frozen")
    before = Before.of(subject, cuda=cuda)
    replays, eagers = [], []
    for _ in range(2):  # what counts the draws goes on, the static inputs do not
        before.inputs.restore()
        replays.append(frozen_copy(subject.replay(), subject.name))
    before.restore()
    for _ in range(2):
        before.inputs.restore()
        eagers.append(frozen_copy(subject.eager(), subject.name))
    before.restore()
    exact = Tolerance(0, 0)
    if not differences(eagers[0], eagers[1], exact):
        _nothing_random(subject, log, before, eagers[0])
        return 2
    if not differences(replays[0], replays[1], exact):
        log.add(
            "rng-frozen",
            f"two replays give the same {subject.name}, two eager runs do not",
            path=subject.name,
            why="dropout or sampling that repeats looks right in one replay and is not: the "
            "random numbers, or the seed, are those of the capture",
            todo="draw from the default generator within the graph, register your own with the "
            "graph (CUDAGraph.register_generator_state), or count the seed up in a tensor "
            "within the graph; a number that Python counts is frozen",
        )
    return 2


def _nothing_random(subject: Subject, log: CheckLog, before: Before, first: Any) -> None:
    """Judge that two eager runs give the same: by chance, or because nothing is drawn."""
    exact, drew, alike = Tolerance(0, 0), False, True
    for _ in range(_MORE_DRAWS):
        before.inputs.restore()
        again = frozen_copy(subject.eager(), subject.name)
        drew = before.randomness.has_advanced()
        alike = not differences(first, again, exact)
        if not alike:
            break
    before.restore()
    if drew or not alike:
        log.note("random numbers were to be checked, but two eager runs give the same")
        return
    log.add(
        "rng-frozen",
        f"rng=True says that random numbers are drawn, and {_MORE_DRAWS + 2} eager runs draw none: "
        f"they give the same {subject.name}",
        path=subject.name,
        why="a check of random numbers that are not there passes whatever the graph does",
        todo="see that the code draws (dropout in train mode, a temperature above 0) and does not "
        "seed its generator in each call; else leave rng=True out",
    )


_MORE_DRAWS = 6
"""How often eager code is run again before it counts as drawing nothing: equal is not rare."""


def uninitialized(subject: Subject, log: CheckLog, tolerance: Tolerance, *, cuda: bool) -> None:
    """Check that eager results do not depend on memory that nobody has filled."""
    if any(one.check == "uninitialized-read" for one in log.findings):
        return
    before = Before.of(subject, cuda=cuda)

    def run(value: int) -> tuple[dict[str, Any], Filled]:
        before.restore()
        with filling(value) as filled:
            return frozen_copy(subject.eager(), subject.name), filled

    found: list[Difference] = []
    try:
        zeros, filled = run(0)
        if filled.count:
            found = differences(zeros, run(1)[0], tolerance)
        # Twice, as the first may be equal by chance: what Python counts goes on.
        if any(differences(zeros, run(0)[0], Tolerance(0, 0)) for _ in range(2 if found else 0)):
            found = []  # eager code is not reproducible, whatever is in that memory
    except Exception as error:  # some code does not run below a dispatch mode
        log.cannot("uninitialized-read", f"{type(error).__name__}: {error}")
        return
    finally:
        before.restore()
    log.did("uninitialized-read")
    for one in found:
        log.add(
            "uninitialized-read",
            f"{one.path} depends on memory that nobody has filled: the eager results with 0 in it "
            "and with 1 in it differ",
            path=one.path,
            where=", ".join(filled.lines),
            why="in the pool of a graph that memory holds what another graph has left there",
            todo="look for torch.empty: fill all of it, or read only what was written",
        )


def padding(
    subject: Subject, log: CheckLog, before: Before, name: str, rows: int, total: int
) -> None:
    """Check that padded rows are not written where live ones are.

    Args:
        subject: what is compared.
        log: takes the finding.
        before: what the replay started from; it is put back.
        name: the stimulus.
        rows: how many first rows are live.
        total: how many rows the graph has.

    """
    if rows >= total:
        return
    try:
        found = collisions(subject.padded, rows, total)
    except Exception as error:  # some code does not run below a dispatch mode
        log.cannot("replay-differs (padding)", f"{type(error).__name__}: {error}")
        return
    finally:
        before.restore()
    for one in found[:1]:
        log.add(
            "replay-differs",
            f"{one.words}; after {name}, {rows} of {total} rows are live",
            where=one.where,
            why="which of them remains is chance on a GPU: right results now say nothing",
            todo="give padded rows a place of their own (a slot that no request has), or skip "
            "them in the kernel",
        )
