"""Captures of ``torch.cuda`` as they happen, in code that knows nothing of this plugin.

Nothing is imported here; the module below imports torch.
"""
