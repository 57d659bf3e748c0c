"""Writes docs/reference/graph-specimens.md: ``python -m tests.specimens.graphs.table``.

All but the names of the correct programs comes from the catalog.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.specimens.graphs.catalog import CATALOG
from tests.specimens.graphs.specimen import HOME, GraphSpecimen
from tests.specimens.plain_graphs import catalog as plain

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "graph-specimens.md"

_HEAD = """\
# Graph specimens

<!-- Written by `python -m tests.specimens.graphs.table`; edit catalog.py there instead. -->

Each is a module under `tests/specimens/graphs/`: the small piece of an engine in which a real
project's bug happened, in a class `Buggy` and with that project's repair in a class `Fixed`, and
the test its author would write, which is the same for both. On three seeds every buggy form must
fail with the named checks and every fixed form must pass: on the software graph in
`tests/specimens/test_graph_specimens.py`, on real CUDA graphs in
`tests/gpu/test_graph_specimens_on_gpu.py`:

```
python -m pytest tests/specimens/test_graph_specimens.py
python -m pytest tests/gpu/test_graph_specimens_on_gpu.py   # needs an NVIDIA GPU
python -m tests.specimens.graphs --cuda --save              # the same as a table, kept as a record
```

**Bold** names are the bugs that the checks were written for. A dash means that the mechanism does
not exist there; the last column says why.

"""
_COLUMNS = ("specimen", "mechanism", "stands for", "software", "cuda", "what is particular")
_CORRECT = """
## Correct programs that look suspicious

In the modules `correct*.py` beside them; none of them may raise an alarm.

"""
_PLAIN = """
## The same bugs as plain programs

In `tests/specimens/plain_graphs/` each of them is a program that calls `torch.cuda.graph`,
`torch.cuda.CUDAGraph` or `make_graphed_callables` by itself and knows nothing of this plugin, with
the test that its author would write, which looks at shapes. `buggy/` has all of them, `fixed/` the
files that the repairs change. Compared with eager code every buggy program answers wrongly, or
raises, and every fixed one rightly. The verdict is what a look at the captures of the buggy program
must say, with the line; *refused* captures fail by themselves, with the line; what is *out of reach*
is caught by the check in the last column, in the specimen of the same name.

"""


def render() -> str:
    """Return the page's text."""
    rows = [_row(*_COLUMNS), _row(*("---" for _ in _COLUMNS))]
    rows += [_specimen_row(specimen) for specimen in CATALOG]
    programs = [_row("program", "what is suspicious"), _row("---", "---"), *_program_rows()]
    parts = [_HEAD + "\n".join(rows), _CORRECT + "\n".join(programs)]
    return "\n".join([*parts, _PLAIN + "\n".join(plain_rows()), ""])


def plain_rows() -> list[str]:
    """Return the table of the plain programs, a row for each."""
    rows = [_row("program", "verdict", "line", "why", "caught by"), _row(*("---" for _ in range(5)))]
    for each in plain.CATALOG:
        lines = ", ".join(f"`{line}`" for line in each.named_lines) or "-"
        why = f"{each.why} (not judged without a GPU)" if each.streams else each.why
        caught = f"`{each.caught_by}`" if each.caught_by else "-"
        verdict = each.verdict.value
        if each.instead is not None:
            verdict = f"{each.said.value}; meant: {verdict}, but {each.instead[1]}"
        rows.append(_row(f"`{each.name}`", verdict, lines, why, caught))
    return rows


def _specimen_row(specimen: GraphSpecimen) -> str:
    name = f"**`{specimen.name}`**" if specimen.seed else f"`{specimen.name}`"
    reason = f" ({specimen.reason})" if specimen.reason else ""
    return _row(
        name,
        specimen.mechanism,
        ", ".join(_link(bug) for bug in specimen.corpus),
        _words(specimen, "software"),
        _words(specimen, "cuda"),
        specimen.note + reason,
    )


def _words(specimen: GraphSpecimen, backend: str) -> str:
    if backend not in specimen.backends:
        return "-"
    return ", ".join(f"`{word}`" for word in specimen.words(backend))


def _program_rows() -> list[str]:
    """Return a row for each public function of the modules, which are read and not imported."""
    return [
        _row(f"`{node.name}`", (ast.get_docstring(node) or "").partition("\n")[0])
        for name in ("correct.py", "correct_pairs.py", "correct_kinds.py", "correct_tensors.py")
        for node in ast.parse((HOME / name).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _link(bug: str) -> str:
    repository, _, number = bug.partition("#")
    return f"[{bug}](https://github.com/{repository}/issues/{number})"


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(render(), encoding="utf-8")
