"""Tests of the bookkeeping of the KV cache."""
