"""What the user reads, one module each."""
