"""The problems of a session, as code scanning and annotations show them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from pytest_cudafork.capture.in_tests.gathered import Gathered
from pytest_cudafork.capture.in_tests.words import finding_lines
from pytest_cudafork.check.findings import Finding
from pytest_cudafork.documents.problem import (
    ERROR,
    NOTE,
    WARNING,
    Place,
    Problem,
    is_in,
    place_at,
    place_in,
    place_of_touch,
    steps_of_touch,
)
from pytest_cudafork.errors import CudaForkError, PoisonedTouchError
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.observe.story.stories import History
from pytest_cudafork.observe.story.touch import Touch, culprit_of, frames_from
from pytest_cudafork.observe.story.words import headline, touch_lines

_ACCEPTED = "in the baseline of the check"


def problems_of_findings(
    findings: Iterable[Finding],
    history: History,
    accepted: Collection[str],
    *,
    root: str,
    simulated: bool,
) -> list[Problem]:
    """Return the errors of a session, one for each line and kind.

    Args:
        findings: The errors.
        history: The ledger.
        accepted: The ids of those that the baseline holds.
        root: The project's folder.
        simulated: Whether the driver is the phantom.

    """
    problems: dict[tuple[str, str, bool], Problem] = {}
    for found in findings:
        known = found.id in accepted
        key = (found.error.__name__, f"{found.place}\0{found.culprit(history)}", known)
        if key not in problems:
            problems[key] = _problem(found, history, root, simulated=simulated, accepted=known)
    return list(problems.values())


def accepted_forks(records: Iterable[Record]) -> list[Finding]:
    """Return the forks that would be errors, but for the baseline."""
    return [
        Finding(each, CudaForkError)
        for each in records
        if each["k"] == "fork" and each.get("verdict") == "accepted"
    ]


def _problem(
    found: Finding, history: History, root: str, *, simulated: bool, accepted: bool
) -> Problem:
    cause = found.cause(history)
    story = found.story(history, simulated=simulated)
    stack = frames_from(found.record.get("stack", ()))
    culprit = culprit_of(stack)
    steps = steps_of_touch(cause) if cause is not None else ()
    if found.error is CudaForkError:
        rule = "fork-while-initialized"
        place = place_in(root, [*([culprit] if culprit else []), *stack])
        if culprit is not None:
            steps = (*steps, (Place(culprit.filename, max(1, culprit.lineno)), "forks"))
    else:
        rule = "poisoned-touch" if found.error is PoisonedTouchError else "touch"
        place = place_of_touch(root, Touch.from_record(found.record))
    # The line to change is that of the first touch, if it is the project's own.
    culprit_place = place_of_touch(root, cause) if cause is not None else None
    return Problem(
        rule=rule,
        level=NOTE if accepted else ERROR,
        message=plain(story.partition("\n")[0]),
        story=story,
        place=culprit_place or place,
        steps=steps,
        accepted=_ACCEPTED if accepted else "",
        test=plain(found.happened_at),
    )


def import_notes(history: History, errors: Iterable[Problem], root: str) -> list[Problem]:
    """Return the touches at import that are no error at the session's level: each line once."""
    told = {each.place for each in errors}
    notes: dict[Place, Problem] = {}
    for touch in history.touches:
        place = place_of_touch(root, touch)
        if touch.test or touch.poisoned or not touch.at_import or place is None:
            continue
        if place not in told and place not in notes:
            notes[place] = Problem(
                rule="touch-at-import",
                level=NOTE,
                message=f"CUDA is initialized at import: {headline(touch)}",
                story="\n".join(touch_lines(touch)),
                place=place,
                steps=steps_of_touch(touch),
            )
    return list(notes.values())


def problems_of_captures(captures: Iterable[dict[str, Any]], root: str) -> list[Problem]:
    """Return what checks of captured graphs have found.

    Args:
        captures: The verdicts as plain data, each with its test.
        root: The project's folder.

    """
    problems = []
    for capture in captures:
        for finding in capture["findings"]:
            place = place_at(finding["where"])
            if place is not None and not is_in(root, place.file):
                place = None
            parts = [finding["what"], finding["why"], finding["todo"]]
            at = f"{finding['path']}: " if finding["path"] else ""
            problems.append(
                Problem(
                    rule="graph-capture",
                    level=WARNING if capture["verdict"] == "not judged" else ERROR,
                    message=plain(f"[{finding['check']}] {at}{finding['what']}".split("\n")[0]),
                    story="\n".join(
                        [f"[{finding['check']}] {at}{parts[0]}", *filter(None, parts[1:])]
                    ),
                    place=place,
                    test=capture["test"],
                )
            )
    return problems


def problems_of_graphs(graphs: Gathered, root: str) -> list[Problem]:
    """Return what was found of captures that tests make by themselves; suspicions are warnings.

    Args:
        graphs: It, from the reports of a session.
        root: The project's folder.

    """
    errors = [each for each in graphs.errors if each["fails"]]
    levels = [*[ERROR] * len(errors), *[WARNING] * len(graphs.suspicions)]
    return [
        _problem_of_graph(found, level, root)
        for found, level in zip([*errors, *graphs.suspicions], levels, strict=True)
    ]


def _problem_of_graph(found: dict[str, Any], level: str, root: str) -> Problem:
    steps = tuple(
        (place, words) for words, where in found["lines"] if (place := place_at(where)) is not None
    )
    own = (place for place, _ in steps if is_in(root, place.file))
    return Problem(
        rule="graph-capture",
        level=level,
        message=plain(f"[{found['kind']}] {found['what']}".split("\n")[0]),
        story="\n".join(finding_lines(found, brief=False)),
        place=next(own, None),
        steps=steps,
        test=found["tests"][0],
    )


def unseen_problems(words: Iterable[str]) -> list[Problem]:
    """Return what could not be seen, or was lost."""
    return [
        Problem(rule="not-observable", level=WARNING, message=plain(f"not observable: {each}"))
        for each in words
    ]
