"""The software graph: capture and replay of work on CPU tensors, for machines without a GPU.

Nothing is imported here; the modules below import torch.
"""
