"""The child's side of an audit: the import itself."""
