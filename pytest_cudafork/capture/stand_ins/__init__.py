"""The names of ``torch.cuda`` that capture graphs, on the software graph: for code of libraries.

Nothing is imported here; the modules below import torch, but for ``for_tests``.
"""
