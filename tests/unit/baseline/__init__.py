"""Baselines, one module each."""
