"""The child's side of the doctor: scripts for fresh interpreters, which know nothing of it."""
