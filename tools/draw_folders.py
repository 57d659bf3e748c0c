"""Draws the folders of the package and who imports whom into docs/explanation/architecture.md.

The picture is Mermaid, which GitHub shows as a graph and a terminal as text; the table below it has
every folder, with the first line of its docstring and what it imports. Both are read off the code:
``python tools/draw_folders.py`` writes them anew, and tests/repo/test_architecture.py fails where
the page is old.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))

from tests.repo.sources import DOCS, PACKAGE, Module, folder_of, imports_of, modules  # noqa: E402

PAGE = DOCS / "explanation" / "architecture.md"
BEGIN = "<!-- Written by `python tools/draw_folders.py`, from the code. -->"
END = "<!-- end of what is written by tools/draw_folders.py -->"
TOP = "plugin"
"""What the modules at the top of the package are called in the picture."""

Graph = dict[str, set[str]]


def folder_graph() -> Graph:
    """Return which folder imports from which, by its path below the package; "" is the top."""
    by_name = {module.name: module for module in modules()}
    graph: Graph = {folder_of(module): set() for module in modules() if not _is_init(module)}
    for module in modules():
        for found in imports_of(module):
            target = by_name.get(found.target)
            if found.typing or target is None or _is_init(target):
                continue
            if folder_of(target) != folder_of(module):
                graph.setdefault(folder_of(module), set()).add(folder_of(target))
    return graph


def _is_init(module: Module) -> bool:
    return module.path.name == "__init__.py"


def top_level(graph: Mapping[str, set[str]]) -> Graph:
    """Return the same with each folder and its subfolders in one."""
    tops: Graph = {}
    for folder, targets in graph.items():
        top = _top(folder)
        tops.setdefault(top, set()).update(_top(target) for target in targets)
        tops[top].discard(top)
    return tops


def _top(folder: str) -> str:
    return folder.partition("/")[0] or TOP


def without_shortcuts(graph: Mapping[str, set[str]]) -> Graph:
    """Return the graph without the arrows that a way over other folders already says."""
    left = {folder: set(targets) for folder, targets in graph.items()}
    for folder in sorted(left):
        for target in sorted(left[folder]):
            left[folder].discard(target)
            if target not in _reached(left, folder):
                left[folder].add(target)
    return left


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph.get(waiting.pop(), set()) - seen
        seen |= new
        waiting += new
    return seen


def picture(graph: Mapping[str, set[str]]) -> str:
    """Return the folders at the top, with the names of those inside, as a graph in Mermaid."""
    inside: dict[str, list[str]] = {}
    for folder in sorted(graph):
        below = folder.partition("/")[2]
        inside.setdefault(_top(folder), []).extend([below] if below else [])
    lines = ["```mermaid", "graph TD"]
    for top, names in sorted(inside.items()):
        listed = "<br/>" + " · ".join(names) if names else ""
        lines.append(f'    {top}["<b>{top}</b>{listed}"]')
    for top, targets in sorted(without_shortcuts(top_level(graph)).items()):
        lines += [f"    {top} --> {target}" for target in sorted(targets)]
    return "\n".join([*lines, "```"])


def table(graph: Mapping[str, set[str]]) -> str:
    """Return every folder with what it is for and what it imports, as a table in Markdown."""
    lines = ["| folder | is for | imports |", "|---|---|---|"]
    for folder in sorted(graph):
        targets = ", ".join(_shown(target) for target in sorted(graph[folder])) or "nothing"
        lines.append(f"| {_shown(folder)} | {_first_line(folder)} | {targets} |")
    return "\n".join(lines)


def _shown(folder: str) -> str:
    return f"`{folder or TOP}`"


def _first_line(folder: str) -> str:
    path = PROJECT / PACKAGE / folder
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].replace("|", "\\|")


def drawn() -> str:
    """Return what belongs between the two comments of the page."""
    graph = folder_graph()
    return f"{picture(graph)}\n\n{table(graph)}\n"


def on_page(text: str) -> str:
    """Return what stands there.

    Raises:
        ValueError: the page has no such two comments.

    """
    before, begin, rest = text.partition(BEGIN + "\n")
    found, end, _ = rest.partition(END)
    if not (before and begin and end):
        raise ValueError(f"{PAGE} lacks the lines {BEGIN!r} and {END!r}")
    return found


def main() -> None:
    """Write the picture and the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.replace(on_page(text), drawn()), encoding="utf-8")


if __name__ == "__main__":
    main()
