"""Compares the work of two recordings: what one lacks."""

from __future__ import annotations

from collections import Counter

from pytest_cudafork.capture.interface.backend import GraphNode, Recording


def key(node: GraphNode) -> tuple[str, str]:
    """What a node is compared by."""
    return node.kind, node.name


def missing_nodes(warm: Recording, captured: Recording) -> Counter[tuple[str, str]]:
    """Return the nodes of one recording that the other lacks; copies and the like are left out."""
    kinds = ("op", "triton", "kernel")
    one = Counter(key(node) for node in warm.nodes or () if node.kind in kinds)
    two = Counter(key(node) for node in captured.nodes or () if node.kind in kinds)
    return one - two
