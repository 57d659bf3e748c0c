"""Stands for flashinfer-ai/flashinfer#4889 (and sgl-project/sglang#462): the import asks for the device
capability, but only where an optional package happens to be installed."""
