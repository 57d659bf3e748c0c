"""What a session was meant to be, and was not: tests that ran otherwise than they should have."""
