"""Tests of attention backends and their registry."""
