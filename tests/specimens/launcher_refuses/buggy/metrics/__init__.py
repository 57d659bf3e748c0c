"""Metrics that the user's notebook imports."""

from metrics.throughput import peak_flops

__all__ = ["peak_flops"]
