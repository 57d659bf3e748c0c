"""Algorithms on a directed graph: distances, shortest paths, dominators, bridges, smallest cuts.

A graph is a mapping from each node to those it leads to. A few lines of breadth-first search are
all that is needed, so no graph library is.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping

Links = Mapping[str, Collection[str]]
Pair = tuple[str, str]

_ROOT = ""
"""Stands before all goals; no node has this name."""


def reversed_links(links: Links) -> dict[str, list[str]]:
    """Return the graph with all edges reversed."""
    back: dict[str, list[str]] = defaultdict(list)
    for start, ends in links.items():
        for end in ends:
            back[end].append(start)
    return back


def distances(
    links: Links, starts: Iterable[str], without: Collection[Pair] = ()
) -> dict[str, int]:
    """Return how many edges each node is away from the nearest start, if it is reached at all."""
    found = dict.fromkeys(starts, 0)
    queue = deque(found)
    while queue:
        node = queue.popleft()
        for end in links.get(node, ()):
            if end not in found and (node, end) not in without:
                found[end] = found[node] + 1
                queue.append(end)
    return found


def shortest_path(links: Links, start: str, goals: Collection[str]) -> list[str]:
    """Return the nodes of a shortest path, start and goal included; [] if there is none.

    Among equals, the one whose first differing node comes first in the alphabet.
    """
    away = distances(reversed_links(links), goals)
    if start not in away:
        return []
    path = [start]
    while away[path[-1]]:
        nearer = away[path[-1]] - 1
        path.append(min(end for end in links[path[-1]] if away.get(end) == nearer))
    return path


def dominators(links: Links, root: str) -> dict[str, str]:
    """Return for each node that the root reaches the last node that all paths to it run through.

    The algorithm of Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm".
    """
    order = _postorder(links, root)
    rank = {node: index for index, node in enumerate(order)}
    back = reversed_links({node: links.get(node, ()) for node in order})
    above = {root: root}

    def intersect(one: str, other: str) -> str:
        while one != other:
            while rank[one] < rank[other]:
                one = above[one]
            while rank[other] < rank[one]:
                other = above[other]
        return one

    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):  # each has a start that comes before it
            known = [start for start in back[node] if start in above]
            new = known[0]
            for start in known[1:]:
                new = intersect(new, start)
            if above.get(node) != new:
                above[node] = new
                changed = True
    return above


def _postorder(links: Links, root: str) -> list[str]:
    order: list[str] = []
    seen = {root}
    stack = [(root, iter(links.get(root, ())))]
    while stack:
        node, ends = stack[-1]
        for end in ends:
            if end not in seen:
                seen.add(end)
                stack.append((end, iter(links.get(end, ()))))
                break
        else:
            order.append(node)
            stack.pop()
    return order


def freed_by_edge(
    links: Links, goals: Collection[str], counted: Collection[str]
) -> dict[Pair, int]:
    """Return for each edge without which a counted node no longer reaches a goal, how many do not.

    Seen from the goals with all edges reversed, such an edge is a bridge: all other ways to
    its upper end run through that end itself. Then it parts exactly the nodes which that end
    dominates from the goals.

    Args:
        links: The graph.
        goals: Where the counted nodes lead to.
        counted: The nodes that count.

    """
    back: dict[str, Collection[str]] = {**reversed_links(links), _ROOT: sorted(goals)}
    above = dominators(back, _ROOT)
    below: dict[str, list[str]] = defaultdict(list)
    for node, over in above.items():
        if node != _ROOT:
            below[over].append(node)
    order = _postorder(below, _ROOT)
    rank = {node: index for index, node in enumerate(order)}
    size: dict[str, int] = {}
    first: dict[str, int] = {}
    for node in order:
        size[node] = (node in counted) + sum(size[child] for child in below[node])
        first[node] = min((first[child] for child in below[node]), default=rank[node])
    freed: dict[Pair, int] = {}
    for node, over in above.items():
        if over == _ROOT or not size[node]:
            continue
        others = (end for end in links.get(node, ()) if end in above and end != over)
        if all(first[node] <= rank[end] <= rank[node] for end in others):
            freed[node, over] = size[node]
    return freed


def heads(links: Links, goals: Collection[str], counted: Collection[str]) -> list[str]:
    """Return the nodes next to the goals' root in the tree of dominators, the heaviest first.

    Whoever parts one of them from the goals parts all counted nodes that it dominates, and no
    single node can be parted from the goals that dominates more.
    """
    back: dict[str, Collection[str]] = {**reversed_links(links), _ROOT: sorted(goals)}
    above = dominators(back, _ROOT)
    weight: dict[str, int] = defaultdict(int)
    for node in above:
        if node not in counted:
            continue
        while above[node] != _ROOT and above[node] not in goals:
            node = above[node]
        weight[node] += 1
    return sorted(weight, key=lambda node: (-weight[node], node))


def smallest_cut(
    links: Links,
    starts: Collection[str],
    goals: Collection[str],
    may_cut: Callable[[str, str], bool],
    most: int,
) -> set[Pair] | None:
    """Return the fewest edges without which no start reaches a goal, those nearest to the goals.

    Maximal flow by augmenting paths, each edge that may be cut letting one unit through.

    Args:
        links: The graph.
        starts: Where the paths begin.
        goals: Where they end.
        may_cut: Whether an edge may be cut.
        most: How many edges may be cut at most.

    Returns:
        The edges; None if there are more, or if edges that may not be cut suffice for a path.

    """
    back = reversed_links(links)
    flow: dict[Pair, int] = defaultdict(int)

    def is_open(start: str, end: str) -> bool:
        return not flow[start, end] or not may_cut(start, end)

    for _ in range(most + 1):
        path = _open_path(links, back, starts, goals, flow, is_open)
        if not path:
            break
        for start, end in itertools.pairwise(path):
            if flow[end, start]:
                flow[end, start] -= 1
            else:
                flow[start, end] += 1
    else:
        return None
    behind = set(goals)
    queue = deque(behind)
    while queue:
        node = queue.popleft()
        nearer = [start for start in back.get(node, ()) if is_open(start, node)]
        nearer += [end for end in links.get(node, ()) if flow[node, end]]
        for start in nearer:
            if start not in behind:
                behind.add(start)
                queue.append(start)
    return {
        (start, end)
        for end in behind
        for start in back.get(end, ())
        if start not in behind and start in links
    }


def _open_path(
    links: Links,
    back: Links,
    starts: Collection[str],
    goals: Collection[str],
    flow: Mapping[Pair, int],
    is_open: Callable[[str, str], bool],
) -> list[str]:
    """Return a path along which one more unit can flow, or a unit can be sent another way."""
    before: dict[str, str] = dict.fromkeys(starts, _ROOT)
    queue = deque(before)
    while queue:
        node = queue.popleft()
        if node in goals:
            path = [node]
            while before[path[-1]]:
                path.append(before[path[-1]])
            return path[::-1]
        ends = [end for end in links.get(node, ()) if is_open(node, end)]
        ends += [start for start in back.get(node, ()) if flow[start, node]]
        for end in ends:
            if end not in before:
                before[end] = node
                queue.append(end)
    return []
