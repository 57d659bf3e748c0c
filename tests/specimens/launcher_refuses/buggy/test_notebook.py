"""What a user's notebook does."""

from fabric.multiprocessing import launch


def test_two_ranks_run_from_a_notebook():
    import metrics

    assert metrics.peak_flops() > 0
    assert launch(int, ranks=2) == [0, 0]
