"""Shards arrive in the staging buffer."""

from prefetch.staging import Staging


def test_rows_arrive_in_order():
    staging = Staging(rows=2)
    assert staging.load(3).tolist() == [3, 4]
