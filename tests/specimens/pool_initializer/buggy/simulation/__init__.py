"""Stands for inducer/pycuda#137: the parent counts the devices, and the initializer of each pool worker
cannot make its context any more."""
