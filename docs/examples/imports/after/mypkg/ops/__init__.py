"""No re-export: whoever needs a kernel imports its module, where it is needed."""
