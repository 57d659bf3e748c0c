"""Isolated tests next to other plugins; in an environment of their own, see the Makefile."""
