"""Processes of our own: starting, supervising and ending them, whatever their job is."""
