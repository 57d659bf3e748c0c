"""Baselines: files of what is accepted today, which are only ever to become shorter."""
