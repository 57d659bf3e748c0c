"""Paged KV memory: which block holds what, for whom. It does not know how attention reads it."""
