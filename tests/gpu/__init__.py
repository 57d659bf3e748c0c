"""Tests that need an NVIDIA GPU; skipped with a reason where there is none."""
