"""Tests of one module each, in this process; the folders mirror the package."""
