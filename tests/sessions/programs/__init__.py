"""Sessions whose tests run scripts."""
