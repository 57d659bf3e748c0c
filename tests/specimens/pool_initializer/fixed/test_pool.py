"""The pool computes."""

from simulation.pool import simulate


def test_steps_come_back_in_order():
    assert simulate(3) == [0, 1, 4]
