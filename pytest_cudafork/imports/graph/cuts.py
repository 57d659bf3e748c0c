"""Which imports to make lazy, so that fewer modules reach a line that initializes CUDA.

For each culprit line: the shortest chain of imports that leads to it, the one import that frees
most modules, a few that free more together, and the words for all that.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pytest_cudafork.counted import count_of
from pytest_cudafork.imports.graph import reach
from pytest_cudafork.imports.graph.import_graph import Edge, EdgeKind, ImportGraph
from pytest_cudafork.imports.values.records import ImportRecord
from pytest_cudafork.observe.story.paths import short_path
from pytest_cudafork.observe.story.touch import Frame

_MOST_EDGES = 5
_MOST_HEADS = 8


@dataclass(frozen=True)
class Cut:
    """Imports to make lazy, and how many modules no longer reach the culprit line then."""

    edges: tuple[Edge, ...]
    frees: int


@dataclass(frozen=True)
class CulpritCuts:
    """One culprit line, how it is reached, and the imports to cut.

    Attributes:
        where: The line, as records are grouped by it.
        culprit: Its frame; None if no Python was running.
        modules: The modules that touch there first, sorted.
        sinks: The module that holds the line, if it is one of the package; else the modules
            through which the package enters the libraries that hold it.
        entry: The public entry point from which the chain starts; "" if no chain is known.
        chain: The shortest way from there to a sink; () too where the entry is the sink.
        lazy: The one import whose removal frees most modules; None if none frees any.
        together: A few imports that free more modules together, and each of them at least as
            many as the one does; else None.

    """

    where: str
    culprit: Frame | None
    modules: tuple[str, ...]
    sinks: tuple[str, ...] = ()
    entry: str = ""
    chain: tuple[Edge, ...] = ()
    lazy: Cut | None = None
    together: Cut | None = None

    @property
    def scope(self) -> str:
        """What kind of code the line is, in words; "" if no line is known."""
        return self.culprit.scope.value if self.culprit else ""


def find_cuts(graph: ImportGraph, records: Iterable[ImportRecord]) -> list[CulpritCuts]:
    """Return what to cut for each culprit line, the line that most modules reach first.

    Args:
        graph: The package's imports.
        records: What the imports of its modules did.

    """
    groups: dict[str, list[ImportRecord]] = defaultdict(list)
    for record in records:
        if record.verdict.touched:
            groups[record.where].append(record)
    order = sorted(groups, key=lambda where: (-len(groups[where]), where))
    finder = _CutFinder(graph)
    return [finder.find(where, groups[where]) for where in order]


class _CutFinder:
    """Answers for one graph."""

    def __init__(self, graph: ImportGraph) -> None:
        self._graph = graph
        self._links = graph.links

    def find(self, where: str, records: Sequence[ImportRecord]) -> CulpritCuts:
        culprit = records[0].culprit
        modules = tuple(sorted({record.module for record in records}))
        sinks = self._sinks(records)
        if not sinks:
            return CulpritCuts(where, culprit, modules)
        links = self._relevant(modules, sinks)
        entry, path = _entry(links, records, modules, sinks)
        chain = tuple(self._graph.edges[pair] for pair in itertools.pairwise(path))
        depths = reach.distances(links, _starts(records, modules))
        lazy = self._best_edge(links, modules, sinks, depths)
        together = self._best_cut(links, modules, sinks, entry, lazy)
        return CulpritCuts(where, culprit, modules, sinks, entry, chain, lazy, together)

    def _sinks(self, records: Sequence[ImportRecord]) -> tuple[str, ...]:
        """Return where the package's own code ends on the way to the culprit."""
        inside = self._graph.modules
        found: set[str] = set()
        for record in records:
            trail = self._graph.trails.get(record.module, ())
            names = [body.module for body in trail]
            if not names and record.culprit is not None:  # a thread of an import that is over
                name = self._graph.module_at(record.culprit.filename)
                found.update([name] if name else [])
            own = [index for index, name in enumerate(names) if name in inside]
            if names:
                found.add(names[min(own[-1] + 1, len(names) - 1) if own else 0])
        return tuple(sorted(found))

    def _relevant(self, modules: Sequence[str], sinks: Collection[str]) -> dict[str, list[str]]:
        """Leave of the graph what is on a way from a module to a sink."""
        near = reach.distances(reach.reversed_links(self._links), sinks)
        reached = reach.distances(self._links, modules)
        return {
            node: [end for end in self._links[node] if end in near]
            for node in reached
            if near.get(node) and node in self._links
        }

    def _best_edge(
        self,
        links: reach.Links,
        modules: Sequence[str],
        sinks: Collection[str],
        depths: dict[str, int],
    ) -> Cut | None:
        """Return the edge that frees most, the one nearest to the entry points among equals."""
        freed = reach.freed_by_edge(links, sinks, frozenset(modules))
        able = [pair for pair in freed if self._graph.can_be_lazy(*pair)]
        if not able:
            return None
        best = min(able, key=lambda pair: (-freed[pair], depths.get(pair[0], len(depths)), pair))
        return Cut((self._graph.edges[best],), freed[best])

    def _best_cut(
        self,
        links: reach.Links,
        modules: Sequence[str],
        sinks: Collection[str],
        entry: str,
        lazy: Cut | None,
    ) -> Cut | None:
        """Return a few edges that free more, each at least as many as the best one does alone.

        Tried are the smallest cuts below all modules at once, below the entry point, and below
        those nodes that stand before most others. So it need not be the best of all sets.
        """
        counted = frozenset(modules)
        fixed = {
            node: [end for end in ends if not self._graph.can_be_lazy(node, end)]
            for node, ends in links.items()
        }
        stuck = reach.distances(reach.reversed_links(fixed), sinks)
        near = reach.distances(reach.reversed_links(links), sinks)
        free = sorted(node for node in counted if node in near and node not in stuck)
        heads = reach.heads(links, sinks, counted)[:_MOST_HEADS]
        tries = [free, *([node] for node in dict.fromkeys([entry, *heads]) if node not in stuck)]
        best = None if lazy is None else lazy
        tried: set[frozenset[reach.Pair]] = set()
        for starts in filter(None, tries):
            pairs = reach.smallest_cut(links, starts, sinks, self._graph.can_be_lazy, _MOST_EDGES)
            if not pairs or frozenset(pairs) in tried:
                continue
            tried.add(frozenset(pairs))
            left = reach.distances(reach.reversed_links(links), sinks, {(b, a) for a, b in pairs})
            frees = sum(node in near and node not in left for node in counted)
            if frees and (
                best is None or _gain(frees, len(pairs)) > _gain(best.frees, len(best.edges))
            ):
                best = Cut(tuple(self._graph.edges[pair] for pair in sorted(pairs)), frees)
        return None if best is lazy else best


def _gain(frees: int, edges: int) -> tuple[float, int]:
    return frees / edges, frees


def _starts(records: Sequence[ImportRecord], modules: Sequence[str]) -> list[str]:
    """Return the public entry points: the package's root if it touches, else what is nearest."""
    roots = sorted({record.package for record in records}.intersection(modules))
    if roots:
        return roots
    fewest = min(name.count(".") for name in modules)
    return [name for name in modules if name.count(".") == fewest]


def _entry(
    links: reach.Links,
    records: Sequence[ImportRecord],
    modules: Sequence[str],
    sinks: Collection[str],
) -> tuple[str, list[str]]:
    """Return the entry point that is nearest to a sink, and the path from there."""
    paths = [reach.shortest_path(links, start, sinks) for start in _starts(records, modules)]
    best = min(filter(None, paths), key=lambda path: (len(path), path), default=[])
    return (best[0] if best else ""), best


def cut_lines(cuts: CulpritCuts, base: str | None = None) -> list[str]:
    """Return in words what to cut.

    Args:
        cuts: What was found.
        base: The directory to which paths are shown relative; the current one if None.

    Returns:
        A headline, and lines indented by two spaces: the chain, then what to do.

    """
    line = f"{_shown(cuts, base)}: {count_of(len(cuts.modules), 'module')}"
    return [line, *(f"  {text}" for text in [*chain_lines(cuts, base), *to_do(cuts, base)])]


def _shown(cuts: CulpritCuts, base: str | None) -> str:
    culprit = cuts.culprit
    if culprit is None:
        return cuts.where or "no line is known"
    return f"{short_path(culprit.filename, base)}:{culprit.lineno} ({cuts.scope})"


def chain_lines(cuts: CulpritCuts, base: str | None = None) -> list[str]:
    """Return one line for each step of the shortest chain, the culprit line last."""
    lines = []
    for edge in cuts.chain:
        if edge.kind is EdgeKind.PARENT:
            lines.append(f"{edge.importer} runs its parent {edge.imported}")
        else:
            when = ", lazily" if edge.is_lazy else ""
            lines.append(f"{place_of(edge, base)}  {edge.importer} imports {edge.imported}{when}")
    if lines and cuts.culprit is not None:
        lines.append(f"{short_path(cuts.culprit.filename, base)}:{cuts.culprit.lineno}")
    return lines


def place_of(edge: Edge, base: str | None = None) -> str:
    """``file:line`` of an edge, with all its lines; only the file if no line is known."""
    path = short_path(edge.path, base) if edge.path else edge.importer
    return ":".join([path, *([",".join(map(str, edge.lines))] if edge.lines else [])])


CHANGE_IT_TOO = "change the line itself"
CHANGE_IT = f"{CHANGE_IT_TOO}: no import that can be made lazy frees a module"


def to_do(cuts: CulpritCuts, base: str | None = None) -> list[str]:
    """Return what to change: one import, or a few; or the culprit line itself."""
    lines = []
    if cuts.lazy is not None:
        lines.append(_make_lazy(cuts.lazy, len(cuts.modules), base))
    if cuts.together is not None:
        first = "or " if lines else ""
        lines.append(first + _make_lazy(cuts.together, len(cuts.modules), base))
    if cuts.culprit is None:
        return ["no Python was running, so nothing can be said of who imports it"]
    return lines or [CHANGE_IT]


def _make_lazy(cut: Cut, count: int, base: str | None) -> str:
    places = [place_of(edge, base) for edge in cut.edges]
    names = ", ".join(f"`{place}`" for place in dict.fromkeys(places))
    if len(cut.edges) == 1:
        edge = cut.edges[0]
        return (
            f"make {names} ({edge.importer} imports {edge.imported}) lazy: "
            f"frees {cut.frees} of {count}"
        )
    return f"make {names} lazy, all {len(cut.edges)} together: frees {cut.frees} of {count}"
