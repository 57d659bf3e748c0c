"""Correct programs, and calls that CUDA refuses to capture."""
