"""Where each report of the corpus is to be found among the specimens, or why it is not there.

``python -m tests.specimens.corpus_map`` writes docs/reference/corpus.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from tests.specimens import table
from tests.specimens.catalog import CATALOG
from tests.specimens.corpus import FORK_BUGS
from tests.specimens.graphs.catalog import CATALOG as GRAPHS
from tests.specimens.graphs.corpus import GRAPH_BUGS
from tests.specimens.graphs.specimen import GraphSpecimen
from tests.specimens.specimen import Specimen

FILE = Path(__file__).with_suffix(".toml")
PAGE = table.PAGE.with_name("corpus.md")
_ALL: tuple[Specimen | GraphSpecimen, ...] = (*CATALOG, *GRAPHS)
SPECIMENS = {each.name: each.mechanism for each in _ALL}
"""Mechanism of each specimen."""

_HEAD = """\
# Reports and specimens

<!-- Written by `python -m tests.specimens.corpus_map`; edit corpus_map.toml there instead. -->

Public reports of what goes wrong around forks and captured graphs, each under the mechanism that
was found in its thread, and what stands for it here: [specimens of forks](specimens.md) and
[of graphs](graph-specimens.md). A specimen was *made after* a report, or *shows* one that fails in
the same way. The others have none, for the reason given.

"""
_COLUMNS = ("report", "mechanism", "specimens")


@dataclass(frozen=True)
class Place:
    """What stands for one report.

    Attributes:
        made_after: the specimens that were made after it.
        shown_by: a specimen that fails in the same way; "": none does.
        why_not: why there is none; "": there is.

    """

    made_after: tuple[str, ...] = ()
    shown_by: str = ""
    why_not: str = ""

    def words(self) -> str:
        """Return the cell of the page."""
        if self.why_not:
            return self.why_not
        if self.shown_by:
            return f"shown by `{self.shown_by}`"
        return "made after: " + ", ".join(f"`{name}`" for name in self.made_after)


def read() -> dict[str, dict[str, str]]:
    """Return the two tables of the file, by report."""
    tables: dict[str, dict[str, str]] = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return tables


def places() -> dict[str, Place]:
    """Return what stands for each report that a catalog or the file knows."""
    tables = read()
    found = {bug: Place(shown_by=name) for bug, name in tables["shown"].items()}
    found |= {bug: Place(why_not=reason) for bug, reason in tables["not_shown"].items()}
    for each in _ALL:
        for bug in each.corpus:
            before = found.get(bug, Place()).made_after
            found[bug] = Place(made_after=(*before, each.name))
    return found


def render() -> str:
    """Return the page's text."""
    known = places()
    parts = []
    corpora: tuple[tuple[str, Mapping[str, str]], ...] = (
        ("Forks", FORK_BUGS),
        ("Graphs", GRAPH_BUGS),
    )
    for title, bugs in corpora:
        rows = [table.row(*_COLUMNS), table.row(*("---" for _ in _COLUMNS))]
        for bug, mechanism in sorted(bugs.items(), key=lambda item: (item[1], item[0])):
            rows.append(table.row(table.link(bug), mechanism, known[bug].words()))
        parts.append(f"## {title}\n\n" + "\n".join(rows) + "\n")
    return _HEAD + "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
