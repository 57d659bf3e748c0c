"""Stands for mlc-ai/xgrammar#231: the package asks torch.cuda.is_available() when it is imported, which
forbids every later fork while torch.cuda.is_initialized() still says False."""
