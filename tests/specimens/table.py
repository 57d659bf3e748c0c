"""Writes docs/reference/specimens.md from the catalog: ``python -m tests.specimens.table``."""

from __future__ import annotations

from pathlib import Path

from tests.specimens.catalog import CATALOG
from tests.specimens.specimen import Specimen

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "specimens.md"

_HEAD = """\
# Specimens

<!-- Written by `python -m tests.specimens.table`; edit tests/specimens/catalog.py instead. -->

Each is a small package under `tests/specimens/`, in a `buggy` form with the bug of a real project
and a `fixed` form with that project's repair. The folder `fixed` holds only the files that the
repair changes: the form is `buggy` with these laid over it. The plugin must name the marked line of
every buggy one at the given level, and stay silent about every fixed one. To see both:

```
cp -r tests/specimens/init_reexport/buggy /tmp/specimen
python -m pytest --cuda-fork-check=fork /tmp/specimen
cp -r tests/specimens/init_reexport/fixed/. /tmp/specimen
python -m pytest --cuda-fork-check=fork /tmp/specimen
```

A device other than `auto` is what makes the line reachable on a machine without a GPU. **Bold**
names are the bugs that the plugin was written for.

"""
_COLUMNS = ("specimen", "mechanism", "stands for", "level", "device", "what is particular")


def render() -> str:
    """Return the page's text."""
    rows = [row(*_COLUMNS), row(*("---" for _ in _COLUMNS))]
    rows += [_specimen_row(specimen) for specimen in CATALOG]
    return _HEAD + "\n".join(rows) + "\n"


def _specimen_row(specimen: Specimen) -> str:
    name = f"**`{specimen.name}`**" if specimen.seed else f"`{specimen.name}`"
    return row(
        name,
        specimen.mechanism,
        ", ".join(link(bug) for bug in specimen.corpus) or "(no report)",
        f"`{specimen.level}`",
        f"`{specimen.device}`",
        specimen.note,
    )


def row(*cells: str) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def link(bug: str) -> str:
    """Return a report as a link to it; its name where it has no number."""
    repository, _, number = bug.partition("#")
    if not number:
        return bug
    return f"[{bug}](https://github.com/{repository}/issues/{number})"


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(render(), encoding="utf-8")
