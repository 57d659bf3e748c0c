"""Isolated tests in the order of pytest-order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.isolation import METHODS
from tests.support.isolation_plugins import same

ORDERED = """
    import pytest

    @pytest.mark.order(after="test_third")
    def test_fourth():
        pass

    @pytest.mark.order(3)
    def test_third():
        assert 0

    def test_between():
        pass

    @pytest.mark.order("last")
    def test_last():
        pass

    @pytest.mark.order("first")
    def test_first():
        pass
"""


@pytest.mark.parametrize("scope", ["test", "module"])
def test_the_order_is_that_of_one_process(tmp_path: Path, scope: str) -> None:
    run = f"--cuda-fork-isolate-scope={scope}"
    for (seen,) in same(tmp_path, METHODS, ["order"], {"test_it.py": ORDERED}, run).values():
        first = next(line for line in seen.stdout if "test_it.py::" in line)
        assert "test_first" in first
