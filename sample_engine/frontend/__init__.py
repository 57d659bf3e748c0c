"""What a caller reads while the engine is at work: text of tokens, progress bars."""
