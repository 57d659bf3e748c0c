"""Tests of other plugins' parts in a child."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cudafork.isolate.child import plugins


@pytest.mark.parametrize("runs", [0, 2])
def test_reruns_go_on_where_the_parent_stands(runs: int) -> None:
    class Counts:
        _suite_rerun_count = 1

        def get_test_failures(self, name: str) -> int:
            return 0

    class Config:
        failures_db = Counts()

    config: Any = Config()
    plugins.continue_reruns(config, {"runs": runs, "session": 5})
    assert config.failures_db.get_test_failures("x") == runs
    assert config.failures_db._suite_rerun_count == 5
    plugins.continue_reruns(config, None)
