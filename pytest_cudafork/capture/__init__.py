"""Checks of captured graphs: whether a replay computes what eager code computes, and why not.

Nothing is imported here: the modules below import torch, and importing the plugin must not.
"""
