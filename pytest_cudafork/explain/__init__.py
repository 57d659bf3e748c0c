"""Explaining a pasted log: which error of CUDA and fork it holds, and what to run next."""
