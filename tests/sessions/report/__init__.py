"""What a session shows of what it saw."""
