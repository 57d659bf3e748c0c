"""The file worker as the program that drives it sees it."""
