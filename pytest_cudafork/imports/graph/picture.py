"""The picture of a package's imports: one HTML file that draws itself, or a text for dot.

All names, paths and messages are other people's: they go into the page as JSON only, and the page
shows them as text.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from pytest_cudafork.counted import count_of
from pytest_cudafork.documents.writing import write_at_once
from pytest_cudafork.imports.graph import reach
from pytest_cudafork.imports.graph.cuts import CulpritCuts, cut_lines, place_of, to_do
from pytest_cudafork.imports.graph.import_graph import Edge, EdgeKind, ImportGraph
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from pytest_cudafork.observe.story.paths import short_path
from pytest_cudafork.observe.story.plain_text import plain

_SLOT = re.compile(r"@@([A-Z]+)@@")
_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.M)
_MOST_REASON = 300
_COLOURS = {"holds": "#d32f2f", "leads": "#ffb74d", "clean": "#c8e6c9", "other": "#cfd8dc"}


def write_html(
    path: str | os.PathLike[str],
    graph: ImportGraph,
    records: Iterable[ImportRecord],
    culprits: Sequence[CulpritCuts],
    base: str | None = None,
) -> None:
    """Write the picture as one HTML file that needs no network.

    Args:
        path: The file to write.
        graph: The package's imports.
        records: What the imports of its modules did.
        culprits: The culprit lines, and what to do about each.
        base: The directory to which paths are shown relative; the current one if None.

    Raises:
        OSError: The file cannot be written.

    """
    data = picture_data(graph, records, culprits, base)
    parts = {
        "TITLE": html.escape(plain(data["title"])),
        "STYLE": asset("picture.css"),
        "BODY": asset("picture_body.html"),
        "DATA": embedded(data),
        "LIBRARIES": libraries(),
        "PAGE": asset("picture.js"),
    }
    page = _SLOT.sub(lambda slot: parts[slot.group(1)], asset("picture.html"))
    write_at_once(path, page, "replace")


def picture_data(
    graph: ImportGraph,
    records: Iterable[ImportRecord],
    culprits: Sequence[CulpritCuts],
    base: str | None = None,
) -> dict[str, Any]:
    """Return what is drawn as plain data; the arguments are those of ``write_html``."""
    return _Data(graph, tuple(records), culprits, base).collect()


def libraries() -> str:
    """Return the scripts that draw graphs, with their licenses."""
    dagre = f"/*! @license\n{asset('dagre.LICENSE.txt')}*/\n{asset('dagre.min.js')}"
    return f"{asset('cytoscape.min.js')}\n{dagre}"


def asset(name: str) -> str:
    """Return a file of the page as text."""
    folder = resources.files("pytest_cudafork.imports.graph") / "assets"
    return _SOURCE_MAP.sub("", (folder / name).read_text(encoding="utf-8"))


def embedded(data: Mapping[str, Any]) -> str:
    """Return JSON in which nothing can end the element that it stands in."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class _Data:
    """Gathers what is drawn; modules are named by their index in one list."""

    def __init__(
        self,
        graph: ImportGraph,
        records: Sequence[ImportRecord],
        culprits: Sequence[CulpritCuts],
        base: str | None,
    ) -> None:
        self._graph = graph
        self._records = {record.module: record for record in records}
        self._culprits = culprits
        self._base = base
        self._hops = [next_hops(graph, item) for item in culprits]
        inside = sorted(frozenset(graph.modules).union(self._records))
        named = {name for item in culprits for name in item.sinks}
        named.update(name for hops in self._hops for edge in hops for name in edge.pair)
        self._inside = frozenset(inside)
        self._names = [*inside, *sorted(named - self._inside)]
        self._index = {name: index for index, name in enumerate(self._names)}

    def collect(self) -> dict[str, Any]:
        """Return all that the page needs, as plain data."""
        packages = sorted({record.package for record in self._records.values()})
        return {
            "title": f"What initializes CUDA when {', '.join(packages) or 'it'} is imported",
            "modules": [self._module(name) for name in self._names],
            "edges": [
                self._edge(edge)
                for pair, edge in sorted(self._graph.edges.items())
                if self._inside.issuperset(pair) and edge.kind is not EdgeKind.PARENT
            ],
            "culprits": [
                self._culprit(item, hops)
                for item, hops in zip(self._culprits, self._hops, strict=True)
            ],
        }

    def _module(self, name: str) -> dict[str, Any]:
        record = self._records.get(name)
        where = record.where if record and record.verdict.touched else None
        found = [index for index, item in enumerate(self._culprits) if item.where == where]
        path = self._graph.modules.get(name, "")
        return {
            "name": name,
            "inside": name in self._inside,
            "state": state_of(name, record, self._culprits),
            "verdict": record.verdict.value if record else "",
            "culprit": found[0] if found else -1,
            "reason": record.reason[:_MOST_REASON] if record else "",
            "path": short_path(path, self._base) if path else "",
        }

    def _edge(self, edge: Edge) -> list[Any]:
        place = place_of(edge, self._base) if edge.kind is not EdgeKind.PARENT else "as its parent"
        return [self._index[edge.importer], self._index[edge.imported], place]

    def _culprit(self, item: CulpritCuts, hops: Sequence[Edge]) -> dict[str, Any]:
        lines = cut_lines(item, self._base)
        cuts = [edge for cut in (item.lazy, item.together) if cut for edge in cut.edges]
        return {
            "title": lines[0].rpartition(": ")[0],
            "label": _label(item),
            "count": count_of(len(item.modules), "module"),
            "lines": [line.strip() for line in lines],
            "todo": len(to_do(item, self._base)),
            "sinks": [self._index[name] for name in item.sinks],
            "chain": [self._edge(edge) for edge in item.chain],
            "cuts": [self._edge(edge) for edge in cuts],
            "hops": [self._edge(edge) for edge in hops],
        }


def _label(item: CulpritCuts) -> str:
    """Return the culprit in few words: the last two parts of its path, and what it is."""
    if item.culprit is None:
        return item.where
    tail = "/".join(re.split(r"[/\\]", item.culprit.filename)[-2:])
    return f"{tail}:{item.culprit.lineno} ({item.scope})"


def next_hops(graph: ImportGraph, cuts: CulpritCuts) -> list[Edge]:
    """Return the edges of a shortest way from each module that touches to the culprit.

    One leaves each module, so that they make a tree: what the picture shows of a graph that has
    too many edges to be looked at. The chain of the cuts is among them.
    """
    links = graph.links
    near = reach.distances(reach.reversed_links(links), cuts.sinks)
    found = {edge.importer: edge for edge in cuts.chain}
    for name in cuts.modules:
        while near.get(name) and name not in found:
            ends = [end for end in links[name] if near.get(end) == near[name] - 1]
            found[name] = graph.edges[name, min(ends)]
            name = found[name].imported
    cut_edges = [edge for cut in (cuts.lazy, cuts.together) if cut for edge in cut.edges]
    return list(dict.fromkeys([*found.values(), *cut_edges]))


def state_of(name: str, record: ImportRecord | None, culprits: Sequence[CulpritCuts]) -> str:
    """Return how a module is drawn.

    "holds" if a culprit line is its own (or is in a library that the package enters by it),
    "leads" if it touches through an import, "clean", or "other" where nothing is known.
    """
    if any(name in item.sinks for item in culprits):
        return "holds"
    if record is None:
        return "other"
    if record.verdict.touched:
        return "leads"
    return "clean" if record.verdict is ImportVerdict.CLEAN else "other"


def write_dot(
    path: str | os.PathLike[str],
    graph: ImportGraph,
    records: Iterable[ImportRecord],
    culprits: Sequence[CulpritCuts],
    base: str | None = None,
) -> None:
    """Write the import chains in the language of dot: what touches, and how it gets there.

    Args:
        path: The file to write.
        graph: The package's imports.
        records: What the imports of its modules did.
        culprits: The culprit lines, and what to do about each.
        base: The directory to which paths are shown relative; the current one if None.

    Raises:
        OSError: The file cannot be written.

    """
    known = {record.module: record for record in records}
    names = {name for item in culprits for name in (*item.modules, *item.sinks)}
    edges: dict[tuple[str, str], Edge] = {}
    cuts: set[tuple[str, str]] = set()
    for item in culprits:
        edges.update((edge.pair, edge) for edge in next_hops(graph, item))
        cuts.update(edge.pair for edge in (item.lazy.edges if item.lazy else ()))
    names.update(name for pair in edges for name in pair)
    clean = sum(record.verdict is ImportVerdict.CLEAN for record in known.values())
    lines = [
        f"// {len(known)} modules, {clean} of them clean; drawn is what touches CUDA",
        "digraph imports {",
        "  rankdir=LR;",
        '  node [shape=box, style="rounded,filled", fontname="sans-serif", fontsize=10];',
        '  edge [color="#e0883a"];',
    ]
    for name in sorted(names):
        colour = _COLOURS[state_of(name, known.get(name), culprits)]
        lines.append(f"  {_quoted(name)} [fillcolor={_quoted(colour)}];")
    for pair in sorted(edges):
        place = place_of(edges[pair], base) if edges[pair].lines else ""
        look = ', color="#1565c0", style=dashed, penwidth=3' if pair in cuts else ""
        shown = f"label={_quoted(place)}, fontsize=8{look}" if look else f"tooltip={_quoted(place)}"
        lines.append(f"  {_quoted(pair[0])} -> {_quoted(pair[1])} [{shown}];")
    for index, item in enumerate(culprits):
        culprit = _quoted(f"culprit {index + 1}")
        look = 'shape=octagon, fillcolor="#7f0000", fontcolor=white'
        text = "\n".join(line.strip() for line in cut_lines(item, base))
        lines.append(
            f"  {culprit} [label={_quoted(_label(item))}, tooltip={_quoted(text)}, {look}];"
        )
        lines += [f"  {_quoted(name)} -> {culprit};" for name in item.sinks]
    write_at_once(path, "\n".join([*lines, "}", ""]), "replace")


def _quoted(text: str) -> str:
    """Return a string of dot: backslashes and quotes escaped, control characters as spaces."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + re.sub(r"[\x00-\x1f\x7f]", " ", text) + '"'
