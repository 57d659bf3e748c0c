"""Triton kernels of attention, and in ``reference`` a torch oracle of the same name for each.

Nothing here is imported before a backend needs it: the modules import triton at their top.
"""
