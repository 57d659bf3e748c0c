"""Code that no file holds: what can be found in it, and what is said without a line to name."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.support import interpreters
from tests.support.sessions import needs_torch

pytestmark = needs_torch

torch = pytest.importorskip("torch")

from pytest_cudafork import ReplayDiffersError  # noqa: E402
from pytest_cudafork import assert_replay_equals_eager as compare  # noqa: E402


def test_code_without_a_file_is_checked_too() -> None:
    made: dict[str, Any] = {}
    exec("def f(x):\n    return x.to('cpu') * 2\n", made)
    with pytest.raises(ReplayDiffersError) as caught:
        compare(made["f"], [torch.ones(4)], backend="software")
    assert [one.check for one in caught.value.findings] == ["host-sync"]


@pytest.mark.slow
def test_memory_that_nobody_filled_is_found_where_no_line_can_be_named() -> None:
    code = (
        "import torch\n"
        "from pytest_cudafork import assert_replay_equals_eager as compare\n"
        "def g(x):\n    y = torch.empty(4)\n    y[:2] = x[:2]\n    return y\n"
        "compare(g, [torch.ones(4)], backend='software')\n"
    )
    done = interpreters.run([sys.executable, "-c", code], timeout=120)
    assert "[uninitialized-read]" in done.stderr
    assert "Eager code gives something else each time" not in done.stderr
