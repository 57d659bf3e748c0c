"""CUDA graphs of the engine: what is captured, how, and which graph serves a batch."""
