"""What GitHub Actions shows: annotations beside lines of a change, and the summary of a step."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Sequence

from pytest_cudafork.documents.problem import ERROR, NOTE, WARNING, Problem, is_in, path_in

_COMMANDS = {ERROR: "error", WARNING: "warning", NOTE: "notice"}
_MOST_STORIES = 50
_MOST_BYTES = 1 << 19
"""Of a summary; GitHub takes 1 MiB from a step, and drops one that is longer altogether."""


def annotation_lines(problems: Iterable[Problem], workspace: str) -> list[str]:
    """Return a command for each problem that is not accepted, the worst first.

    Args:
        problems: What was found.
        workspace: The folder of the checkout, to which the files of annotations are relative.

    """
    order = list(_COMMANDS)
    open_ones = [each for each in problems if not each.accepted]
    open_ones.sort(key=lambda each: order.index(each.level))
    return list(dict.fromkeys(_annotation(each, workspace) for each in open_ones))


def _annotation(problem: Problem, workspace: str) -> str:
    properties = []
    if problem.place is not None:
        file = problem.place.file
        if is_in(workspace, file):
            file = os.path.normpath(path_in(workspace, file) or file)
        properties += [f"file={_property(file)}", f"line={problem.place.line}"]
    properties.append(f"title={_property(f'CUDA and fork: {problem.rule}')}")
    text = problem.story or problem.message
    return f"::{_COMMANDS[problem.level]} {','.join(properties)}::{_data(text)}"


def _data(text: str) -> str:
    """Escape the text of a command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape the value of a command's property."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def step_summary(title: str, numbers: str, problems: Sequence[Problem]) -> str:
    """Return the summary of a step, in Markdown.

    Args:
        title: Its heading.
        numbers: One line that counts what was seen.
        problems: What was found.

    """
    lines = [f"### {_text(title)}", "", _text(numbers), ""]
    shown = list(problems)[:_MOST_STORIES]
    size = 0
    for number, problem in enumerate(shown):
        told = _details(problem)
        size += len("\n".join(told).encode("utf-8", "replace"))
        if size > _MOST_BYTES:
            shown = shown[:number]
            break
        lines += told
    left = len(problems) - len(shown)
    if left:
        lines += [f"... and {left} more", ""]
    return "\n".join(lines)


def _details(problem: Problem) -> list[str]:
    state = "accepted" if problem.accepted else problem.level
    return [
        "<details>",
        f"<summary>{_text(state)}: {_text(problem.message)}</summary>",
        "",
        f"<pre>{_text(problem.story or problem.message)}</pre>",
        "",
        "</details>",
        "",
    ]


def _text(text: str) -> str:
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"), quote=False)
