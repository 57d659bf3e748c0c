"""Graphs are released as soon as nobody can use them."""

from __future__ import annotations

import pytest

from tests.support.sessions import needs_torch, run_session

pytestmark = needs_torch


def test_the_fixture_keeps_no_pair_alive_and_lets_go_of_the_last(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import gc, weakref
        import torch
        kept = []

        def test_many(capture_pair):
            x, seen = torch.ones(4), []
            for _ in range(3):
                seen.append(weakref.ref(capture_pair(lambda d, w: (lambda: x * 2, {}), 4).graph))
                gc.collect()
            assert [ref() for ref in seen] == [None] * 3
            kept.append(capture_pair(lambda d, w: (lambda: x * 2, {}), 4))

        def test_the_last():
            assert kept[0].graph.recording.result is None
        """
    )
    run_session(pytester, "--cuda-fork-graphs=software").assert_outcomes(passed=2)
