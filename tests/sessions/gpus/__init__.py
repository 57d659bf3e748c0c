"""Sessions whose tests lease GPUs."""
