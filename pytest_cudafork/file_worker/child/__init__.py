"""The child's side of the file worker: the template that is forked, and one file in its child."""
