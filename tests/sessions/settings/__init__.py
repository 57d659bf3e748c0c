"""Sessions with options, right and wrong."""
