"""Stands for ofiwg/libfabric#6272: a communication library calls cuInit as a sanity check whenever it lists
its providers, for applications that never send GPU memory."""
