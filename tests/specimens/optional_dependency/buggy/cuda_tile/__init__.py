"""The optional package: here it is installed."""
