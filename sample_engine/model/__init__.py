"""The model: a Llama, its configuration, weights and byte tokenizer."""
