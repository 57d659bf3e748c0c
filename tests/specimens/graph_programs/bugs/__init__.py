"""Programs of bugs, each beside its repair."""
