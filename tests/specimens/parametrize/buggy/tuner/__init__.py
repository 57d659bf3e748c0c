"""Stands for numba/numba#5061: importing a test module initializes CUDA, before the parallel runner forks
its workers; here the list of parameters is what asks."""
