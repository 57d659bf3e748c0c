"""Functions of torch that do something else while the software graph records."""
