"""What the Triton kernels of the model, of attention and of speculation share."""
