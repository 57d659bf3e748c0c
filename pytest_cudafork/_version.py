"""The version, on its own so that reading it imports nothing else."""

version = "0.1.0"
