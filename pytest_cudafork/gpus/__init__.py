"""Owns GPU leases: which GPUs a test may see, and that no two tests see the same one.

It does not know how a test is isolated.
"""
