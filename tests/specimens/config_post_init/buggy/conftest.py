"""The start method that Linux has had for most of Python's life."""

import multiprocessing

multiprocessing.set_start_method("fork", force=True)
