"""Tests of the hooks that other plugins may implement."""
