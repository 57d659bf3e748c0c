"""Tests of the draft head's speculator."""
