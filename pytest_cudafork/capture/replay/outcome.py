"""The end of a check: an error with all that was found, or none."""

from __future__ import annotations

from pytest_cudafork.capture.interface.backend import GraphBackend, GraphNode
from pytest_cudafork.capture.story.findings import CheckLog, failure_text
from pytest_cudafork.capture.story.remarks import remark
from pytest_cudafork.capture.story.verdicts import note_verdict
from pytest_cudafork.errors import GraphCaptureError, GraphNotJudgedError


def raise_what_was_found(
    log: CheckLog,
    title: str,
    backend: GraphBackend,
    error: type[GraphCaptureError],
    nodes: tuple[GraphNode, ...] | None = None,
) -> None:
    """Raise the error of a check if it found anything; else keep its remarks for the report.

    Args:
        log: what was found.
        title: what the message begins with where there is a verdict.
        backend: what captured the graph.
        error: what to raise where there is a verdict.
        nodes: the work in the graph; None: it is not known, or there is no graph.

    Raises:
        GraphCaptureError: as ``error`` says; something is wrong with the code.
        GraphNotJudgedError: all that was found is that the backend cannot run the code.

    """
    __tracebackhide__ = True
    note_verdict(title, backend.name, log, nodes)
    if not log.findings:
        remark(log.notes, log.skipped)
        return
    title = title if log.judged else "no verdict, the code cannot be judged here"
    differs = backend.differences() if log.judged else ""
    kind = error if log.judged else GraphNotJudgedError
    raise kind(failure_text(title, log, backend.name, differs), tuple(log.findings)) from log.cause
