"""Tests of ranks that compute together."""
