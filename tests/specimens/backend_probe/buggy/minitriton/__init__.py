"""A compiler with several backends."""
