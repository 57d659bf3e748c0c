"""Stands for flashinfer-ai/flashinfer#3293: a module constant holds the number of multiprocessors, so the
import needs a GPU and initializes it."""
