"""What the Triton kernels of all folders share."""
