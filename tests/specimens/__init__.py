"""Packages with a real bug each, in a buggy and a fixed form, and what is known about them."""
