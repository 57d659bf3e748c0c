"""Tests of the plugin, module by module and end to end."""
