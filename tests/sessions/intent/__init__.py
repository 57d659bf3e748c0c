"""Sessions that say what they are meant to be."""
