"""The interface of graph backends, and the values that pass through it."""
