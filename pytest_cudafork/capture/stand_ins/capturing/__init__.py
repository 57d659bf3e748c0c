"""Graphs, streams, events and generators of ``torch.cuda``, on the software graph.

Nothing is imported here.
"""
