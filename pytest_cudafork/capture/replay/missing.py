"""Compares the work of two recordings: what one lacks, and what that work read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch

from pytest_cudafork.capture.interface.backend import GraphNode, Recording
from pytest_cudafork.capture.state.tensors import storage_of


def key(node: GraphNode) -> tuple[str, str]:
    """What a node is compared by."""
    return node.kind, node.name


def missing_nodes(warm: Recording, captured: Recording) -> Counter[tuple[str, str]]:
    """Return the nodes of one recording that the other lacks; copies and the like are left out."""
    kinds = ("op", "triton", "kernel")
    one = Counter(key(node) for node in warm.nodes or () if node.kind in kinds)
    two = Counter(key(node) for node in captured.nodes or () if node.kind in kinds)
    return one - two


def inputs_read_by(
    missing: Counter[tuple[str, str]],
    warm: Recording,
    captured: Recording,
    inputs: Mapping[str, torch.Tensor],
) -> list[str]:
    """Return the inputs that missing work was the first to read.

    None where the graph does not use memory that the warm-up has made: then the work was to choose
    or tune something. Kinds of work that the graph has at all do not count.
    """
    nodes, uses = warm.nodes, warm.uses
    if captured.uses is None or nodes is None or uses is None:
        return []
    made = {use.pointer for use in uses if use.owned}
    if not any(use.pointer in made for use in captured.uses if not use.owned):
        return []
    there = {key(node) for node in captured.nodes or ()}
    places = {storage_of(tensor): path for path, tensor in inputs.items()}
    found = []
    for use in uses:
        if use.reads and use.pointer in places and 0 <= use.node < len(nodes):
            first = key(nodes[use.node])
            if first in missing and first not in there:
                found.append(places[use.pointer])
    return found
