"""One attempt to capture: what goes wrong becomes a finding that names the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_cudafork.capture.interface.backend import Capture, GraphBackend, Recording
from pytest_cudafork.capture.interface.lines import line_of_traceback
from pytest_cudafork.capture.state.compare import short
from pytest_cudafork.capture.story.findings import CheckLog
from pytest_cudafork.errors import CaptureFailedError


def capture_graph(
    backend: GraphBackend,
    fn: Callable[[], Any],
    log: CheckLog,
    *,
    pool: Any = None,
    warmup: Recording | None = None,
) -> Capture | None:
    """Capture ``fn``; what the backend has to say of it becomes findings. None if it failed."""
    log.did("capture-failed", "host-sync", "outside-pool", "freed-memory", "not-captured")
    try:
        graph = backend.capture(fn, pool=pool)
    except CaptureFailedError as error:
        log.findings.append(error.finding)
        return None
    except Exception as error:
        log.add(
            "capture-failed",
            f"the code raised {type(error).__name__} while it was captured: "
            f"{short(str(error), 200)}",
            where=line_of_traceback(error.__traceback__),
            why="it ran in the warm-up; within a capture nothing is executed, so values that it "
            "looks at are not there",
            todo="see the exception above; prepare on the host before the capture what it needs",
        )
        log.cause = error
        return None
    log.findings.extend(graph.findings)
    nodes = graph.recording.nodes
    if nodes is not None and not nodes and (warmup is None or warmup.nodes):
        log.add(
            "not-captured",
            "the graph is empty: none of the work of the warm-up was captured",
            why="a replay does nothing, and the outputs keep whatever is in their memory",
            todo="issue the work within the captured function, on its thread and stream; results "
            "that are kept from the warm-up are not computed again",
        )
    return graph
