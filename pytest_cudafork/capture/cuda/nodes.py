"""What a captured graph holds: its nodes in order, named as the user would search for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from pytest_cudafork.capture.cuda.libcuda import DriverError, LibCuda, load
from pytest_cudafork.capture.cuda.names import short_name
from pytest_cudafork.capture.interface.backend import GraphNode

NO_NAME = "a kernel whose name the driver does not tell (it needs 12.3 or later)"
_DEEPEST = 8  # graphs within graphs
# CUgraphNodeType. A child's nodes stand in its place; empty nodes and events are no work.
_KERNEL, _MEMCPY, _MEMSET, _HOST, _CHILD = range(5)
_PLAIN = {_MEMSET: ("memset", "memset"), _HOST: ("host", "host function")}
_NO_WORK = {5: "empty", 6: "wait for event", 7: "record event"}
_OTHER = {
    8: "signal semaphore",
    9: "wait for semaphore",
    10: "allocation",
    11: "free",
    12: "memory operations",
    13: "conditional",
}


class RawNode(NamedTuple):
    """A node as the driver tells it."""

    node: GraphNode
    top: int  # index among the nodes of the whole graph, those within a child under the child's
    source: int = 0  # addresses of a copy
    target: int = 0


def list_nodes(cuda: LibCuda, graph: int) -> list[RawNode]:
    """All work of a graph, in the order in which it was captured.

    Raises :class:`DriverError` where the driver does not tell.
    """
    found: list[RawNode] = []
    for top, node in enumerate(cuda.nodes(graph)):
        found.extend(_read(cuda, node, top, 0))
    return found


def work_in_progress() -> int | None:
    """Count the kernels, copies and the like that torch's current stream has captured so far.

    None where the stream is not being captured, where its capture has failed, and where the driver
    does not say. Nothing is initialized.
    """
    if not torch.cuda.is_initialized():
        return None
    try:
        cuda = load()
        graph = cuda.graph_in_progress(torch.cuda.current_stream().cuda_stream)
        return len(list_nodes(cuda, graph)) if graph else None
    except (OSError, DriverError):
        return None


def _read(cuda: LibCuda, node: int, top: int, depth: int) -> list[RawNode]:
    kind = cuda.node_type(node)
    if kind in _NO_WORK:
        return []
    if kind == _CHILD and depth < _DEEPEST:
        children = cuda.nodes(cuda.child(node))
        return [one for child in children for one in _read(cuda, child, top, depth + 1)]
    if kind == _KERNEL:
        name = cuda.kernel_name(node)
        return [RawNode(GraphNode("kernel", short_name(name) if name else NO_NAME), top)]
    if kind == _MEMCPY:
        try:
            ends = cuda.copy_ends(node)
        except DriverError:  # a kind of copy that this older structure cannot hold
            return [RawNode(GraphNode("memcpy", "memcpy"), top)]
        return [RawNode(GraphNode("memcpy", "memcpy"), top, ends.source, ends.target)]
    plain = _PLAIN.get(kind, ("other", _OTHER.get(kind, f"node of type {kind}")))
    return [RawNode(GraphNode(*plain), top)]


def with_lines(raw: Sequence[RawNode], lines: Sequence[str]) -> tuple[GraphNode, ...]:
    """Give each node the line that issued it; ``lines`` holds one for each node of the graph."""
    return tuple(
        one.node._replace(where=lines[one.top]) if one.top < len(lines) else one.node for one in raw
    )
