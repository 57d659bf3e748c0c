"""Stands for pytorch/pytorch#99536: a module of test helpers computes its skip conditions when it is
imported, so collecting a CPU test initializes CUDA; the fix makes each condition a lazy value."""
