"""A process that runs: what can be read of CUDA in it, from outside, without changing anything."""
