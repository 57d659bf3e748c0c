"""Tests of the training of the tiny model."""
