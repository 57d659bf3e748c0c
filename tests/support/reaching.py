"""Small graphs for hypothesis, and by brute force what `reach` computes on them."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import strategies as st

from pytest_cudafork.imports.graph import reach

Graph = dict[str, list[str]]
node_names = st.sampled_from("abcdefgh")


graphs: st.SearchStrategy[Graph] = st.dictionaries(
    node_names, st.lists(node_names, max_size=4, unique=True), max_size=8
)


some_nodes = st.sets(node_names, min_size=1, max_size=3)


def reaching(
    links: Graph, goals: Collection[str], without: Collection[reach.Pair] = ()
) -> set[str]:
    """The nodes from which a goal is reached, by brute force."""
    found = set(goals)
    while True:
        new = {
            start
            for start, ends in links.items()
            for end in ends
            if end in found and (start, end) not in without and start not in found
        }
        if not new:
            return found
        found |= new


def pairs_of(links: Graph) -> list[reach.Pair]:
    """All edges."""
    return [(start, end) for start, ends in links.items() for end in ends]
