"""The communication library: here it is installed."""
