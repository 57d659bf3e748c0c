"""torch's Python API under watch."""
