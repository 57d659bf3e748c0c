"""Who listens to captures, by the value of ``--cuda-fork-captures``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pytest_cudafork.capture.in_tests.children import Children
from pytest_cudafork.capture.interface.seen import Listener, Watch
from pytest_cudafork.capture.judge.judge import Judge
from pytest_cudafork.capture.record.recorder import Later, Recorder
from pytest_cudafork.capture.seen.torch_graphs import hooked
from pytest_cudafork.compat.torch_internals import why_captures_are_not_seen
from pytest_cudafork.observe.base.after_import import Failed


class Watching:
    """The watch of one process and its listeners; it is made once torch has been imported.

    Attributes:
        recorder: keeps the history of memory, and gives each capture its ``uses``.
        judge: judges them; None under "audit", which asks tests and not graphs.
        watch: what the listeners hear of.
        children: what forked children found; None: they are not asked to tell.

    """

    def __init__(self, how: str, *others: Listener) -> None:
        """Make them.

        Raises:
            RuntimeError: this release of torch lacks what they need.

        """
        why = why_captures_are_not_seen()
        if why:
            raise RuntimeError(why)
        self.recorder = Recorder(everything=how == "all", outside=how != "audit")
        self.judge = Judge(self.recorder.history) if how != "audit" else None
        judges = [] if self.judge is None else [self.judge]
        self.watch = Watch([self.recorder, *judges, *others])
        self.children: Children | None = None

    @contextlib.contextmanager
    def in_force(
        self, test: str, later: Later | None = None, failed: Failed | None = None
    ) -> Iterator[None]:
        """Hear of the captures and replays of this thread, for the length of a ``with``.

        ``later`` says when operators outside of captures are of interest; None: at once. ``failed``
        hears of a part that waits for a later module and cannot be set up; None: it is a warning.
        """
        if test != self.watch.test:
            self.another_test_begins()
        self.watch.test = test
        with (
            hooked(self.watch.captured_elsewhere, failed),
            self.watch.in_force(),
            self.recorder.in_force(later, failed),
        ):
            yield

    def another_test_begins(self) -> None:
        """Begin with a test, maybe the same once more: what is wrong is told of it, too."""
        self.recorder.another_test_begins()

    def ask_children(self) -> None:
        """Have forked children of this process tell what they find, from now on."""
        if self.judge is not None and self.children is None:
            self.children = Children(self.judge.findings, self.watch)
        if self.children is not None:
            self.children.begin()

    def a_child_waits(self) -> bool:
        """Whether a child has told what was not taken."""
        return self.children is not None and self.children.waits()

    def close(self) -> None:
        """Listen no more to children that are still there."""
        if self.children is not None:
            self.children.close()

    def take(self) -> dict[str, Any]:
        """Return what was found since the last call, as plain values; {}: nothing."""
        told = self.judge.findings.take() if self.judge is not None else {}
        return told if self.children is None else self.children.take(told)
