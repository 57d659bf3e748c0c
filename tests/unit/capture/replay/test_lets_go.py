"""Graphs are let go of as soon as nobody can use them; and lines are told where files are odd."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.support.helpers import needs_torch

pytestmark = needs_torch

torch = pytest.importorskip("torch")

from pytest_cudafork import ReplayDiffersError  # noqa: E402
from pytest_cudafork import assert_replay_equals_eager as compare  # noqa: E402


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
    pytester.runpytest_subprocess("--cuda-fork-graphs=software").assert_outcomes(passed=2)


def test_code_without_a_file_is_checked_too() -> None:
    made: dict[str, Any] = {}
    exec("def f(x):\n    return x.to('cpu') * 2\n", made)
    with pytest.raises(ReplayDiffersError) as caught:
        compare(made["f"], [torch.ones(4)], backend="software")
    assert [one.check for one in caught.value.findings] == ["host-sync"]


def test_memory_that_nobody_filled_is_found_where_no_line_can_be_named() -> None:
    code = (
        "import torch\n"
        "from pytest_cudafork import assert_replay_equals_eager as compare\n"
        "def g(x):\n    y = torch.empty(4)\n    y[:2] = x[:2]\n    return y\n"
        "compare(g, [torch.ones(4)], backend='software')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False, timeout=120
    )
    assert "[uninitialized-read]" in done.stderr
    assert "Eager code gives something else each time" not in done.stderr
