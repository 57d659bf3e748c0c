"""The end of a check: a verdict, the word that there is none, or remarks for the report."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from pytest_cudafork import GraphNotJudgedError, ReplayDiffersError
from pytest_cudafork.capture.replay.outcome import raise_what_was_found
from pytest_cudafork.capture.software.backend import SoftwareBackend
from pytest_cudafork.capture.story.findings import CheckLog
from pytest_cudafork.capture.story.remarks import take


def end(log: CheckLog) -> None:
    raise_what_was_found(log, "the title", SoftwareBackend(), ReplayDiffersError)


def test_what_was_found_is_raised_with_its_cause() -> None:
    log = CheckLog()
    log.add("not-judged", "a limit")
    log.add("replay-differs", "it differs")
    log.cause = ValueError("why")
    with pytest.raises(ReplayDiffersError, match="the title: 2 findings") as caught:
        end(log)
    assert [one.check for one in caught.value.findings] == ["not-judged", "replay-differs"]
    assert caught.value.__cause__ is log.cause
    assert "differences() says where" in str(caught.value)


def test_limits_alone_are_no_verdict() -> None:
    log = CheckLog()
    log.add("not-judged", "a limit")
    with pytest.raises(GraphNotJudgedError, match="no verdict") as caught:
        end(log)
    assert "differences()" not in str(caught.value)


def test_nothing_found_leaves_remarks() -> None:
    take()
    log = CheckLog()
    log.note("a note")
    log.cannot("not-shared", "no inputs")
    end(log)
    assert take() == ["a note", "not checked: not-shared: no inputs"]
