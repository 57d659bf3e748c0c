"""The audit of a change: which imports the files changed since a commit can reach."""
