"""An outage is told once, and asked about again after growing pauses."""

from __future__ import annotations

import logging

import pytest

from sample_engine.kv_transfer.outage import Outage


def test_it_is_asked_again_after_pauses_that_double(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    outage = Outage("fetched", lambda: now[0])
    assert outage.is_over
    with caplog.at_level(logging.WARNING):
        for pause in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
            outage.begin(OSError("no route"))
            assert outage.why == "no route"
            now[0] += pause - 0.5
            assert not outage.is_over
            now[0] += 0.5
            assert outage.is_over
        assert [record.getMessage().partition(".")[0] for record in caplog.records] == [
            "KV blocks are not fetched for now: no route"
        ]
        outage.end()
        outage.end()
    assert caplog.records[1].getMessage() == "KV blocks are fetched again. It was: no route."
    assert len(caplog.records) == 2
    outage.begin(OSError("again"))
    now[0] += 1.0
    assert outage.is_over, "the pauses begin anew"


def test_one_that_raises_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("fetched", lambda: 0.0, quiet=True)
    outage.begin(OSError("no route"))
    assert not caplog.records
