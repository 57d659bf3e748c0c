"""Real CUDA graphs: capture, what a graph holds, and the line at which a capture fails.

Nothing is imported here: the modules below import torch, and importing the plugin must not.
"""
