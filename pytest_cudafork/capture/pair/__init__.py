"""capture_pair: its arguments, the table of its checks, and each check in a module of its name."""
