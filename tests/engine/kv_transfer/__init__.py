"""Tests of sharing KV blocks."""
