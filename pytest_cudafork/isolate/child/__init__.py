"""The child's side of an isolated test: its session, its items, its capture."""
