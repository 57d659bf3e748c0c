"""torch's public surface, called function by function: which calls initialize CUDA."""
