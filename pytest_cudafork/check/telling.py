"""How errors reach the reports: each culprit in full once, and in the first line of every failure.

One line that initializes CUDA may fail forty tests. The first of them tells the whole story; the
others name the lines and say where the rest is. What pytest prints of a failure elsewhere (short
summary, ``--tb=line``, JUnit's message) is its first line, and that has the culprit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cudafork.check.findings import Finding, tell
from pytest_cudafork.check.refusal import RefusedFork
from pytest_cudafork.compat import pytest_internals
from pytest_cudafork.compat.unpatched import weakref
from pytest_cudafork.errors import CudaForkError, CudaTouchError, PoisonedTouchError

if TYPE_CHECKING:
    from pytest_cudafork.observe.story.stories import History

_STYLES = ("auto", "long", "short")
"""Of ``--tb``, those in which pytest shows source lines."""
_OURS = (CudaForkError, CudaTouchError, PoisonedTouchError)


class Telling:
    """Which culprits the reports of this session have told in full, and at which test.

    ``note_told`` tells the session's other processes, which read it in the ledger.
    """

    def __init__(self, note_told: Callable[[str, str], None], *, simulated: bool) -> None:
        self._note_told = note_told
        self._simulated = simulated
        self._told: dict[str, str] = {}
        self._waiting: set[str] = set()
        """Culprits in a failure whose report is still to be made."""
        self._shortened: weakref.WeakSet[RefusedFork] = weakref.WeakSet()
        """The errors in such a failure that are in short by now, where they are to be."""

    def story(self, findings: list[Finding], history: History, nodeid: str) -> str:
        """Tell findings for a failure of this test or collection."""
        # A failure may show a refusal, and have the touches beside it as a section.
        here = dict.fromkeys(self._waiting, f"{nodeid}, above")
        self._waiting.update(found.culprit(history) for found in findings)
        told = {**here, **self._told_before(nodeid, history)}
        return tell(findings, history, simulated=self._simulated, told=told)

    def shorten(self, refusals: list[RefusedFork], history: History, nodeid: str) -> None:
        """Let refusals that this test fails with be told in short where their culprit is known.

        The failure of a phase is seen twice, when it passes our hook and when its report is made.
        """
        if all(refusal in self._shortened for refusal in refusals):
            return
        self._shortened.update(refusals)
        told = self._told_before(nodeid, history)
        here = f"{nodeid}, above"
        for refusal in reversed(refusals):  # as pytest shows a chain, the first to be raised first
            record = history.fork(refusal.fork_id)
            if record is None:
                continue
            found = Finding(record, CudaForkError)
            culprit = found.culprit(history)
            self._waiting.add(culprit)
            if culprit in told:
                at = told[culprit]
                story = found.story(history, simulated=self._simulated, told_at=at, raised=True)
                refusal.tell(story)
            told.setdefault(culprit, here)

    def _told_before(self, nodeid: str, history: History) -> dict[str, str]:
        """The culprits told at other tests: what a test told may be lost when it runs again."""
        told = {**history.told, **self._told}
        return {culprit: at for culprit, at in told.items() if culprit and at != nodeid}

    def reported(self, nodeid: str, *, failed: bool) -> None:
        """Take note that a report was made: what it tells, if it is a failure, is known now."""
        if failed:
            for culprit in self._waiting - self._told.keys():
                self._told[culprit] = nodeid
                self._note_told(culprit, nodeid)
        self._waiting.clear()
        self._shortened.clear()


def told_error(found: Finding, story: str) -> BaseException:
    """Make an error that pytest shows by its message alone.

    The message is the whole story, and the stack is that of our own hooks. pytest leaves the stack
    out for ``pytest.fail(pytrace=False)``, so the error is of that class too.
    """
    kind = found.error
    both = type(kind.__name__, (kind, pytest.fail.Exception), {"__module__": kind.__module__})
    error: Any = both(story)
    error.msg, error.pytrace = story, False
    error.at = found.at
    made: BaseException = error
    return made


def longrepr_of(error: BaseException) -> Any:
    """Return what a report shows of an error that was never raised."""
    try:
        raise error
    except BaseException:
        shown = pytest.ExceptionInfo.from_current().getrepr(style="value")
    put_culprit_first(shown, error)
    return shown


def show_as_pytest(longrepr: Any, error: BaseException, tbstyle: str) -> None:
    """Let a failure by an error of ours read like one of pytest's own: source line, message, place.

    Args:
        longrepr: What the report shows.
        error: The error; one that was not made by ``told_error`` has a traceback of its own.
        tbstyle: What ``--tb`` says.

    """
    at = getattr(error, "at", None)
    if at is None or not isinstance(error, _OURS) or tbstyle not in _STYLES:
        return
    from pytest_cudafork.observe.story.paths import short_path
    from pytest_cudafork.observe.story.source import source_line

    path, line = at
    name = f"{type(error).__module__}.{type(error).__name__}"
    pytest_internals.show_at_line(
        longrepr,
        (short_path(path), line),
        source_line(path, line),
        f"{name}: {error}",
        short=tbstyle == "short",
    )


def put_culprit_first(longrepr: Any, error: BaseException) -> None:
    """Leave the first line of our errors' messages where pytest shows them beside a story.

    With CI=1 pytest prints messages in full in its short summary, below the failures that have
    told them already. ``--tb=line`` prints the place: the user's, not that of our hooks.
    """
    crash = getattr(longrepr, "reprcrash", None)
    if crash is None or not isinstance(error, _OURS):
        return
    crash.message = str(crash.message).partition("\n")[0]
    at = getattr(error, "at", None)
    if at is not None:
        crash.path, crash.lineno = at
