"""The CUDA driver in this process: probe, injection, phantom."""
