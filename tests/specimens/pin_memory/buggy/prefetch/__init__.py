"""Stands for what pinning host memory does in any program that forks afterwards: it initializes the driver
while torch.cuda.is_initialized() stays False (no report of it is known to us)."""
