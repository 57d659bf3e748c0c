"""``--fail-on``: one answer for ``git bisect run`` out of what an audit found.

Lines move from commit to commit, so what is looked for is a file and a scope in it. What cannot be
judged in a commit is skipped there, and never counts as good.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from pytest_cudafork.baseline.culprit import identify
from pytest_cudafork.imports.report.findings import Findings
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.observe.story.touch import Frame
from pytest_cudafork.observe.story.words import headline

GOOD, BAD, SKIP = 0, 1, 125
"""The exit statuses by which ``git bisect run`` judges a commit."""
ABORT = 129
"""From 128 on ``git bisect run`` ends: what is wrong is the command, not the commit."""
ANY = "any"
_LOCALS = ".<locals>"
"""In a qualified name, behind the function in which the rest is defined."""
_SCOPE = re.compile(r"\w+(\.\w+)*|<module>")
_NAMELESS = re.compile(r"(^|\.)<(lambda|listcomp|setcomp|dictcomp|genexpr)>")
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w]+)")


class Place(NamedTuple):
    """Where a touch is looked for.

    Attributes:
        file: The end of a path; "" for anywhere.
        scope: The name of a function or class, with what is written in it, or "<module>"; "" for
            the whole file.

    """

    file: str = ""
    scope: str = ""

    def __str__(self) -> str:
        """The place as it is given."""
        return "::".join(filter(None, self)) or ANY

    def holds(self, path: str) -> bool:
        """Whether a path is that of the file."""
        path = os.path.abspath(path)
        return path == os.path.abspath(self.file) or path.endswith(f"{os.sep}{self.file}")

    def is_culprit(self, frame: Frame) -> bool:
        """Whether a culprit is at this place."""
        if not self.file or not self.holds(frame.filename):
            return not self.file
        scope = identify(frame, os.getcwd()).scope.replace(_LOCALS, "")
        return not self.scope or f".{self.scope}." in f".{scope}."


def parse_place(text: str) -> Place:
    """Read ``FILE``, ``FILE::SCOPE`` or ``any``.

    Raises:
        ValueError: It is none of them.

    """
    file, colons, scope = text.partition("::")
    if text == ANY:
        return Place()
    if re.search(r":\d+$", text):
        raise ValueError(
            f"{text!r}: a line moves from commit to commit: name the function or class, as in "
            f"{file.rpartition(':')[0] if not colons else file}::NAME, or the file alone"
        )
    file = os.path.normpath(file) if file else ""
    scope = scope.replace(_LOCALS, "")
    nameless = _NAMELESS.search(scope)
    if file.endswith(".py") and nameless:
        around = scope[: nameless.start()] or f"NAME, or {file}::<module>"
        raise ValueError(
            f"{text!r}: a lambda or comprehension has no name of its own: name the function or "
            f"class it is written in, as in {file}::{around}"
        )
    if not file.endswith(".py") or (colons and not _SCOPE.fullmatch(scope)):
        raise ValueError(
            f"{text!r} is no place: write FILE.py, FILE.py::function, FILE.py::Class, "
            "FILE.py::<module> or any"
        )
    return Place(file, scope)


class Answer(NamedTuple):
    """What a commit is: the exit status, and why, in words."""

    status: int
    why: str


def judge(findings: Findings, place: Place) -> Answer:
    """Say whether a commit touches CUDA at a place: good, bad, or not to be judged."""
    records = [one for one in findings.records if not findings.baseline.accepts(one)]
    for record in records:
        for touch in record.touches if record.verdict.touched else ():
            if touch.culprit is not None and place.is_culprit(touch.culprit):
                return Answer(BAD, f"{record.module} initializes CUDA at {headline(touch)}")
        if record.verdict.touched and not place.file:
            return Answer(BAD, f"{record.module} initializes CUDA")
    doubts = list(_doubts(findings, records, place))
    if doubts:
        more = f" (and {len(doubts) - 1} more)" if len(doubts) > 1 else ""
        return Answer(SKIP, f"{doubts[0]}{more}")
    if place.file and not _own_modules(findings, place) and not os.path.exists(place.file):
        return Answer(
            GOOD, f"there is no file {place.file!r} here, and nothing touches CUDA in one"
        )
    return Answer(GOOD, f"nothing initializes CUDA at {place}" if place.file else "nothing does")


def _own_modules(findings: Findings, place: Place) -> set[str]:
    """Return the modules that the file of a place is, if it is one of the audited packages."""
    modules = (module for found in findings.found.values() for module in found)
    return {each.name for each in modules if place.file and each.path and place.holds(each.path)}


def _doubts(findings: Findings, records: list[ImportRecord], place: Place) -> Iterator[str]:
    """Give what keeps a commit from being called good."""
    own = _own_modules(findings, place)
    for record in records:
        if record.verdict is ImportVerdict.CLEAN:
            continue
        must_tell = record.module in own or record.module in findings.found
        if record.verdict.touched:
            if record.module in own:
                touch = record.touches[0] if record.touches else None
                at = f" at {headline(touch)}" if touch is not None else ""
                yield f"{record.module} initializes CUDA{at}, which hides what {place} does then"
            elif any(each.culprit is None for each in record.touches):
                yield f"{record.module} initializes CUDA, and no Python line is known for it"
        elif must_tell or not (own or _lacks_library(record, findings)):
            reason = f": {plain(record.reason)}" if record.reason else ""
            yield f"{record.module} is {record.verdict.value}{reason}"


def _lacks_library(record: ImportRecord, findings: Findings) -> bool:
    """Whether a module needs a library that is not installed: so it is in every commit."""
    if record.verdict is not ImportVerdict.NOT_IMPORTABLE or findings.settings.strict:
        return False
    missing = _MISSING.match(record.reason)
    packages = {name.partition(".")[0] for name in findings.found}
    return missing is not None and missing[1] not in packages
