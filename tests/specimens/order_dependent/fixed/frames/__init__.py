"""Stands for NVIDIA/cudf#1245: a test passes alone and fails in the suite, as a file that runs before it
initializes CUDA in the same process."""
