"""Sessions with isolated tests."""
