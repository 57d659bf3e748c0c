"""A small LLM engine: continuous batching, paged KV memory, attention backends, a core process."""
