"""Merging what the ranks saved."""

import pytest
from checkpoint.metadata import merge
from checkpoint.worker import run_in_worker


@pytest.mark.parametrize("ranks", [1, 2])
def test_rows_add_up_over_ranks(ranks, world):
    shards = [{"weight": 4, "device": 0} for _ in range(ranks)]
    assert run_in_worker(merge, shards)["weight"] == 4 * ranks
    assert world["size"] >= 1
