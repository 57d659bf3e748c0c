"""Tests of the engine under the plugin."""
