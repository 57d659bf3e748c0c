"""Runs of the code under test: warm-up, capture, replays and eager runs, compared in rounds."""
