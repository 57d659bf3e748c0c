"""Seeing CUDA: the driver's own word, the witnesses, the ledger and the touch record.

Nothing here needs pytest: all of it also runs in processes that only inherited the watch.
"""
