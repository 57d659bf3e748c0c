"""Graph programs with the verdict that each must get: small, many, and of every kind.

Unlike the specimens of ``graphs``, which each stand for one bug with a full story, these are data:
what runs, what changes between replays, and whether a CUDA graph of it is refused, right or wrong.
``oracle`` asks CUDA itself, without any of the plugin's checks.
"""
