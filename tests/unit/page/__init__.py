"""The page of a session, one module each."""
