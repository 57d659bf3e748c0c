"""The pytest process's side of an isolated test: from its markers to its reports."""
