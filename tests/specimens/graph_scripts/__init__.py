"""Scripts that capture graphs as users of torch write them, and know nothing of this plugin.

Each stands by itself in ``scripts/``: ``serve()`` is what it does, ``expected()`` what eager code
answers. Half of them have a bug. They were written, with their verdicts, before any check had run
on them; ``instead`` in the catalog says where what is said of one is something else.
"""
