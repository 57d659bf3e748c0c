"""Speculative decoding: guesses of the next tokens, and their verification by the model."""
