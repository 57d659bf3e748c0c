"""Tests of tokenizers."""
