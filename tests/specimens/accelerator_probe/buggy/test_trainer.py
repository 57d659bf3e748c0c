"""Ranks are started after the accelerator was looked up."""

from trainer.launch import launch


def test_every_rank_answers():
    assert launch(world_size=2) == [0, 1]
