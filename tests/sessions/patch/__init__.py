"""Patches that hold in children, in whole sessions."""
