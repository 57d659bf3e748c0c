"""The words of a failed check."""
