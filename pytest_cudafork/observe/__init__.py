"""Seeing CUDA: the driver's own word, the witnesses, the ledger and the touch record.

Knows nothing of pytest: everything here also runs in processes that only inherited the watch.
"""
