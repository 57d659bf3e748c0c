"""What sessions were meant to be, one module each."""
