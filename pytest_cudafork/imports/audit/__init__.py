"""The pytest process's side of an audit: what is imported, confirmed, and compared."""
