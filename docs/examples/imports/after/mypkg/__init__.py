"""The same library, with the three fixes."""
