"""Tests of the engine's HTTP server."""
