"""Tests of the repository's own habits: layers, sizes, docs, the cost of an import."""
