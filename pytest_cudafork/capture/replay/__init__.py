"""assert_replay_equals_eager: rounds of change, eager run, replay and comparison."""
