"""Operators of torch on both backends: a sweep that asks each, and a table of the answers."""
