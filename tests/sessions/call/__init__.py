"""Functions in processes of their own."""
