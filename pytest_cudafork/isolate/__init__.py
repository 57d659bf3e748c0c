"""Running functions and whole tests in processes of their own.

Knows nothing of witnesses and touches.
"""
