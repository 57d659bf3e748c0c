"""The graph's algorithms against brute force: what an edge frees, shortest paths, smallest cuts."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.imports.graph import reach
from tests.support.reaching import Graph, graphs, node_names, pairs_of, reaching, some_nodes


@given(graphs, some_nodes, st.sets(node_names))
def test_an_edge_frees_what_no_longer_reaches_a_goal_without_it(
    links: Graph, goals: set[str], counted: set[str]
) -> None:
    before = reaching(links, goals)
    expected = {}
    for pair in pairs_of(links):
        frees = len((before - reaching(links, goals, {pair})) & counted)
        if frees:
            expected[pair] = frees
    assert reach.freed_by_edge(links, goals, counted) == expected


@given(graphs, node_names, some_nodes)
def test_the_shortest_path_is_a_path_and_no_other_is_shorter(
    links: Graph, start: str, goals: set[str]
) -> None:
    path = reach.shortest_path(links, start, goals)
    if not path:
        assert start not in reaching(links, goals)
        return
    assert path[0] == start
    assert path[-1] in goals
    assert set(itertools.pairwise(path)) <= set(pairs_of(links))
    near = set(goals)
    for _ in range(len(path) - 2):
        near |= {one for one, ends in links.items() if near.intersection(ends)}
    assert len(path) == 1 or start not in near


@given(graphs, some_nodes, some_nodes, st.sets(st.tuples(node_names, node_names)))
def test_the_smallest_cut_cuts_and_no_other_is_smaller(
    links: Graph, starts: set[str], goals: set[str], fixed: set[reach.Pair]
) -> None:
    able = [pair for pair in pairs_of(links) if pair not in fixed]
    cut = reach.smallest_cut(links, starts, goals, lambda *pair: pair not in fixed, 2)
    fitting = (
        set(choice)
        for size in range(3)
        for choice in itertools.combinations(able, size)
        if not starts & reaching(links, goals, choice)
    )
    smallest = next(fitting, None)
    assert (cut is None) == (smallest is None)
    if cut is not None and smallest is not None:
        assert not starts & reaching(links, goals, cut)
        assert cut <= set(able)
        assert len(cut) == len(smallest)
