"""What is written for other programs: one form of JSON with a schema, SARIF, GitHub's commands."""
