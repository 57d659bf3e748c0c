"""Private names of other packages, one module for each package."""
