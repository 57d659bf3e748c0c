"""A whole test in a process of its own: what both sides of it share.

Knows nothing of witnesses and touches.
"""
