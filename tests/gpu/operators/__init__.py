"""Operators of torch on both backends: a sweep that asks each, and the table of where they agree."""
