"""Tests of the values and buffers of a step."""
