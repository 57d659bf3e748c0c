"""Tests of what is known of operators."""
