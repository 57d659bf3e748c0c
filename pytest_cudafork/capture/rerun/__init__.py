"""Tests of replays that cannot fail: each is run once more with replays that are spoiled."""
