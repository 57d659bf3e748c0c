"""Reading with several processes; passes when it is run alone."""

from frames.worker import run_in_worker


def test_rows_are_read_in_a_worker():
    assert run_in_worker("1,2,3".split, ",") == ["1", "2", "3"]
