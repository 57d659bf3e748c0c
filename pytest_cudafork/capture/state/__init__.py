"""States and tensors: walking, saving, comparing them."""
