"""GPU leases: which GPUs a test may see, and that no two tests see the same one."""
