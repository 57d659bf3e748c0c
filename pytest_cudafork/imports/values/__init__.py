"""Records, verdicts and settings that pass between the two sides of an audit."""
