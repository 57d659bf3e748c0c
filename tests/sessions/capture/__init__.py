"""Sessions whose tests capture graphs."""
