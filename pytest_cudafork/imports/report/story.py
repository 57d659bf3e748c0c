"""One module's record in words: a headline, and the story that a failing test shows."""

from __future__ import annotations

import dataclasses
import os
import re

from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from pytest_cudafork.observe.story.words import headline, indent, touch_lines

_MOST_OUTPUT = 40
_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_ENTRY = re.compile(r'\s*File "([^"]*)", line')
_START = '  File "<string>", line 1 in <module>'
"""How the stacks of every process of the audit end, as faulthandler writes them."""


def headline_of(record: ImportRecord) -> str:
    """Return one line: what is wrong with the import, and where."""
    if record.verdict is ImportVerdict.TOUCHES:
        return f"the import initializes CUDA at {_at(record)}"
    if record.verdict is ImportVerdict.TOUCHES_THEN_FAILS:
        return f"the import initializes CUDA at {_at(record)}, then fails: {record.reason}"
    if record.verdict is ImportVerdict.TOUCHES_THEN_CRASHES:
        return f"the import initializes CUDA at {_at(record)}, then crashes: {record.reason}"
    if record.verdict is ImportVerdict.NOT_IMPORTABLE:
        return f"cannot be imported: {record.reason}"
    if record.verdict is ImportVerdict.NOT_OBSERVABLE:
        return f"not observable: {record.reason}"
    return record.reason or record.verdict.value


def _title(record: ImportRecord) -> str:
    """Return the headline, without the line where the story says it next."""
    if record.touches and record.verdict is ImportVerdict.TOUCHES:
        return "the import initializes CUDA"
    if record.touches and record.verdict is ImportVerdict.TOUCHES_THEN_FAILS:
        return f"the import initializes CUDA, then fails: {record.reason}"
    if record.touches and record.verdict is ImportVerdict.TOUCHES_THEN_CRASHES:
        return f"the import initializes CUDA, then crashes: {record.reason}"
    return headline_of(record)


def _at(record: ImportRecord) -> str:
    return headline(record.touches[0]) if record.touches else "a line that nobody saw"


def story_lines(record: ImportRecord) -> list[str]:
    """Tell a record: the touch with its source line, its importers and what to do, and the output.

    Args:
        record: What became of the import of one module.

    """
    hidden = f", with {' and '.join(record.without.split('+'))} hidden" if record.without else ""
    lines = [f"{record.module}{hidden}: {_title(record)}"]
    own = record.package.partition(".")[0]
    for number, touch in enumerate(record.touches):
        touch = dataclasses.replace(touch, test=f"the import of {record.module}")
        if number == 0:
            lines += ["", *touch_lines(touch, own=own)]
        else:
            lines += ["", "another library touched after that:"]
            lines += indent(touch_lines(touch, advice=False), "  ")
    if record.confirmed is not None:
        lines += ["", _confirmation(record)]
    output = _without_machinery(record.output)
    if output:
        lines += ["", "what it wrote (end):", *indent(output[-_MOST_OUTPUT:], "  ")]
    return lines


def _confirmation(record: ImportRecord) -> str:
    if record.confirmed:
        return "confirmed: a fresh interpreter that imports only this module says the same"
    return (
        "this is the verdict of a fresh interpreter that imported only this module; forked from "
        "the template it got another one (see the section 'imports')"
    )


def _without_machinery(output: str) -> list[str]:
    """Leave out of a traceback the frames of the audit and of the import system."""
    lines: list[str] = []
    dropping = False
    for line in output.splitlines():
        entry = _ENTRY.match(line)
        if entry is not None:
            path = entry.group(1)
            dropping = path.startswith((_OWN, "<frozen importlib")) or line == _START
            dropping = dropping or path.endswith(f"{os.sep}importlib{os.sep}__init__.py")
        elif not line.startswith("    "):
            dropping = False
        if not dropping:
            lines.append(line)
    return lines
