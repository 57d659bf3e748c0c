"""Triton kernels of the model, and in ``reference`` a torch oracle of the same name for each.

Nothing here is imported before ``model.ops`` needs it: the modules import triton at their top.
"""
