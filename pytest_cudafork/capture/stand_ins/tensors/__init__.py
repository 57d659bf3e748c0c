"""Tensors on "cuda" without a GPU: CPU tensors that say that they lie there.

Nothing is imported here.
"""
