"""Tests of graph managers."""
