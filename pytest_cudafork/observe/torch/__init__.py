"""torch's Python API: the witness in it, and the present face."""
