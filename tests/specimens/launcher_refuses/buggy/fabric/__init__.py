"""Stands for Lightning-AI/pytorch-lightning#21389: the launcher notices that CUDA is initialized and
refuses, without a word about who did it; it was a library the user imports."""
