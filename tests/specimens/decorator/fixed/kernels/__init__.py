"""Kernels of an application."""
