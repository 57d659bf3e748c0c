"""Test files run as programs, each in a fork of a clean process that has imported what they need.

A program that drives it tells one file a line and gets one answer a line; no pytest is needed.
"""
