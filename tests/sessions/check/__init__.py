"""Sessions with --cuda-fork-check."""
