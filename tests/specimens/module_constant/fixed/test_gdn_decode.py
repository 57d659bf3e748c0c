"""Planning off the GPU needs no GPU."""

from serving import plan_in_worker


def test_a_batch_on_the_cpu_takes_one_block():
    assert plan_in_worker(batch_size=8) == 1
