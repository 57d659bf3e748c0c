"""Sessions whose tests run on several hosts, by pytest-xdist."""
