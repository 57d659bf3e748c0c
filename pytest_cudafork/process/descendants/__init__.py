"""What descends from a child: known by its mark, and ended whatever becomes of the session."""
