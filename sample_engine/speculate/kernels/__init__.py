"""Triton kernels of speculators, and in ``reference`` a torch oracle of the same name for each.

Nothing here is imported before a speculator needs it: the modules import triton at their top.
"""
