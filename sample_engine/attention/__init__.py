"""Attention over a paged KV cache: one interface, several backends, each imported late."""
