"""Ranks: the processes that hold one part each of a model, and what they say to each other."""
