"""Values and buffers of a step: requests, batches, the tensors that the model reads."""
