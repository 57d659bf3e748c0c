"""The graph specimens as plain programs, which call ``torch.cuda.graph`` and know no plugin.

``buggy/`` has for each a module of its name, as the author of a serving engine would write it, and
beside it the test that such an author writes: ``serve()`` drives it, and the test looks at shapes.
``expected()`` is what eager code answers to the same batches. ``fixed/`` holds the modules that
the repair changes; the fixed form is ``buggy/`` with these laid over it.
"""
