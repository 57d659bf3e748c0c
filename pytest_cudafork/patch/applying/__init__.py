"""Patches as they travel, and how a process comes by those that it inherits and applies them."""
