"""Paged KV memory: which block holds what, for whom."""
