"""The graph of a package: which module imports which other, and at which line.

The edges come from the sources, without importing anything, and from the stacks of the touches;
what an import is known not to have loaded is left out.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pytest_cudafork.imports.graph.static_imports import Unreadable, WrittenImport, imports_of
from pytest_cudafork.imports.graph.trails import Body, Namer
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from pytest_cudafork.imports.values.targets import FoundModule

_SOURCES = (".py", ".pyw")


class EdgeKind(Enum):
    """How it is known that one module imports another."""

    IMPORT = "import"
    PARENT = "parent"
    SEEN = "seen"


@dataclass(frozen=True)
class Edge:
    """One module imports another.

    A ``PARENT`` edge has no line: importing ``a.b`` runs ``a`` first, which nobody can defer. A
    ``SEEN`` edge is on the stack of a touch only: ``importlib.import_module``, a lazy loader. One
    that ``is_lazy`` is written so on each of its lines: it takes place when the name is first used.
    """

    importer: str
    imported: str
    kind: EdgeKind
    path: str = ""
    lines: tuple[int, ...] = ()
    is_lazy: bool = False

    @property
    def line(self) -> int:
        """The first line that imports; 0 if none is known."""
        return self.lines[0] if self.lines else 0

    @property
    def pair(self) -> tuple[str, str]:
        """The two names."""
        return self.importer, self.imported


@dataclass(frozen=True)
class ImportGraph:
    """Who imports whom.

    Attributes:
        modules: The files of the package's modules, by name.
        edges: All edges, by the names of importer and imported.
        trails: For each module that touches, the modules whose import was in progress at its
            first touch, outermost first.

    """

    modules: Mapping[str, str]
    edges: Mapping[tuple[str, str], Edge]
    trails: Mapping[str, tuple[Body, ...]]

    @property
    def links(self) -> dict[str, list[str]]:
        """For each importer, what it imports, sorted."""
        links: dict[str, list[str]] = defaultdict(list)
        for importer, imported in sorted(self.edges):
            links[importer].append(imported)
        return links

    @property
    def nodes(self) -> frozenset[str]:
        """All names: the package's modules, and the others as far as these import them."""
        return frozenset(self.modules).union(*self.edges)

    def module_at(self, path: str) -> str:
        """Return the package's module of a file; "" if it has none."""
        return next((name for name, file in self.modules.items() if file == path), "")

    def can_be_lazy(self, importer: str, imported: str) -> bool:
        """Whether the import is a line of the package, which its owner can defer and has not."""
        edge = self.edges.get((importer, imported))
        if edge is None or edge.kind is EdgeKind.PARENT or edge.is_lazy:
            return False
        return importer in self.modules


def build_graph(
    modules: Iterable[FoundModule], records: Iterable[ImportRecord] = ()
) -> ImportGraph:
    """Build the graph of a package.

    Args:
        modules: Its modules.
        records: What their imports did; without them, all that is written counts.

    """
    listed = list(modules)
    files = {module.name: module.path for module in listed}
    known = tuple(records)
    written = _read_all(listed)
    loaded = frozenset(name for record in known for name in record.loaded)
    edges = _written_edges(files, written, loaded)
    namer = Namer(files, loaded)
    by_name = {record.module: record for record in known}
    seen = [
        (record.module, tuple(namer.trail(touch))) for record in known for touch in record.touches
    ]
    proven, missing = _compare(seen, edges, files)
    evidence = _ImportEvidence(by_name, loaded)
    kept = {
        pair: edge
        for pair, edge in edges.items()
        if pair in proven or edge.kind is EdgeKind.PARENT or evidence.allows(*pair)
    }
    trails: dict[str, tuple[Body, ...]] = {}
    for module, trail in seen:
        trails.setdefault(module, trail)
    return ImportGraph(files, _with_parents({**kept, **missing}, files), trails)


def _read_all(modules: Iterable[FoundModule]) -> dict[str, list[WrittenImport]]:
    """Return what modules import; one whose source cannot be read has no edges of its own."""
    written: dict[str, list[WrittenImport]] = {}
    for module in modules:
        if not module.path.endswith(_SOURCES):
            continue  # an extension module, or a namespace
        with contextlib.suppress(OSError, ValueError, Unreadable):
            with open(module.path, "rb") as file:
                source = file.read()
            written[module.name] = imports_of(source, module)
    return written


def _written_edges(
    files: Mapping[str, str], written: Mapping[str, list[WrittenImport]], loaded: frozenset[str]
) -> dict[tuple[str, str], Edge]:
    lines: dict[tuple[str, str], set[int]] = defaultdict(set)
    at_once: set[tuple[str, str]] = set()
    for name, imports in written.items():
        for item in imports:
            for target in _targets(item, files, loaded):
                if target != name:
                    lines[name, target].add(item.line)
                    if not item.is_lazy:
                        at_once.add((name, target))
    return {
        pair: Edge(
            *pair, EdgeKind.IMPORT, files[pair[0]], tuple(sorted(found)), pair not in at_once
        )
        for pair, found in lines.items()
    }


def _targets(
    item: WrittenImport, files: Mapping[str, str], loaded: frozenset[str]
) -> Iterable[str]:
    """Return the modules that a statement imports, parents apart.

    ``from a import b`` imports ``a.b`` if that is a module, and only ``a`` otherwise.
    """
    if not item.names:
        return (item.module,)
    full = {name: f"{item.module}.{name}" for name in item.names}
    return {
        dotted if dotted in files or dotted in loaded else item.module for dotted in full.values()
    }


def _with_parents(
    edges: Mapping[tuple[str, str], Edge], files: Mapping[str, str]
) -> dict[tuple[str, str], Edge]:
    """Add that each module's import runs its parents, as far as nobody else says so."""
    result = dict(edges)
    for name in frozenset(files).union(*edges):
        while "." in name:
            parent = name.rpartition(".")[0]
            result[name, parent] = Edge(name, parent, EdgeKind.PARENT)
            name = parent
    return result


class _ImportEvidence:
    """What the records say of whether a written import really took place."""

    def __init__(self, records: Mapping[str, ImportRecord], loaded: frozenset[str]) -> None:
        self._records = records
        self._anywhere = loaded
        self._loaded = {
            name: frozenset(record.loaded)
            for name, record in records.items()
            if record.verdict in (ImportVerdict.CLEAN, ImportVerdict.TOUCHES) and record.loaded
        }

    def allows(self, importer: str, imported: str) -> bool:
        """Whether no record speaks against it.

        A module may be missing from what an import loaded because it was there before. That is
        so for clean modules only: where it touches, or was loaded by others' imports and is not
        known to be clean, it did not happen.
        """
        loaded = self._loaded.get(importer)
        if loaded is None:
            return True
        of_imported = self._records.get(imported)
        if self._records[importer].verdict is ImportVerdict.CLEAN and (
            of_imported is not None and of_imported.verdict.touched
        ):
            return False
        if imported in loaded:
            return True
        if of_imported is not None:
            return of_imported.verdict is ImportVerdict.CLEAN
        return imported not in self._anywhere


def _compare(
    seen: Iterable[tuple[str, tuple[Body, ...]]],
    edges: Mapping[tuple[str, str], Edge],
    files: Mapping[str, str],
) -> tuple[set[tuple[str, str]], dict[tuple[str, str], Edge]]:
    """Return which written edges the stacks prove, and the edges that only the stacks know.

    A line that imports ``a.b.c`` is on the stack while ``a`` is running, so a stack proves the
    edge to what is written; the rest follows from the parents.
    """
    written: dict[str, list[str]] = defaultdict(list)
    for importer, imported in edges:
        written[importer].append(imported)
    proven: set[tuple[str, str]] = set()
    lines: dict[tuple[str, str], tuple[str, set[int]]] = {}
    steps = {step for module, trail in seen for step in _steps(module, trail, files)}
    for (importer, path, line), imported in sorted(steps):
        below = imported + "."
        meant = [
            (importer, name)
            for name in written[importer]
            if (name == imported or name.startswith(below))
            and (line in edges[importer, name].lines or name == imported)
        ]
        if meant:
            proven.update(meant)
        elif importer != imported and not importer.startswith(below):
            lines.setdefault((importer, imported), (path, set()))[1].add(line)
    return proven, {
        pair: Edge(*pair, EdgeKind.SEEN, path, tuple(sorted(found - {0})))
        for pair, (path, found) in lines.items()
    }


def _steps(
    module: str, trail: Sequence[Body], files: Mapping[str, str]
) -> Iterable[tuple[Body, str]]:
    """Pair each module of a trail with the next.

    An extension module has no frame of its own: the first of the trail is reached from it. Where
    there is a source, a trail that begins elsewhere has been cut off.
    """
    if trail and not files.get(module, "").endswith(_SOURCES):
        yield Body(module, files.get(module, ""), 0), trail[0].module
    for outer, inner in itertools.pairwise(trail):
        yield outer, inner.module
