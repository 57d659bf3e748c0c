"""Markers of other suites, read as ours: the ini option ``cuda_fork_marker_map``.

A line says what is read as what::

    distributed(num_gpus=n) = gpus(n)
    gpu_{n} = gpus(n)
    forked = cuda_isolated

On the left stands a marker of the suite: its name, with ``{n}`` for a number in it, and the
arguments that count, each with a name for its value, or with a value that it must have. On the
right stands one of ours with these names, or values as in Python; ``{n}`` in a text is replaced.
The right side may also be the left side of another line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

_IN_NAME = re.compile(r"\{([a-z_]\w*)\}", re.ASCII)
_MOST_STEPS = 20

Value = Any
"""A constant, or a ``Placeholder``."""


class Placeholder(NamedTuple):
    """A name for a value that the mark gives."""

    name: str


class Call(NamedTuple):
    """One side of a line, or what a mark is read as: a name and its arguments."""

    name: str
    args: tuple[Value, ...] = ()
    kwargs: Mapping[str, Value] = {}


Mark = pytest.Mark | Call
"""What a test is marked with, by itself or by the map."""


class Rule(NamedTuple):
    """One line: what is read (``name`` is a pattern with groups), and as what."""

    text: str
    name: re.Pattern[str]
    theirs: Call
    ours: Call

    def reads(self, mark: Mark) -> Call | None:
        """Return what a mark is read as; None if this line is not about it."""
        match = self.name.fullmatch(mark.name)
        if match is None:
            return None
        values: dict[str, Value] = {key: int(text) for key, text in match.groupdict().items()}
        given = [(index, mark.args[index : index + 1]) for index in range(len(self.theirs.args))]
        wanted = dict(enumerate(self.theirs.args))
        for index, there in given:
            if not there or not _fits(wanted[index], there[0], values):
                return None
        for key, value in self.theirs.kwargs.items():
            if key not in mark.kwargs or not _fits(value, mark.kwargs[key], values):
                return None
        args = tuple(_filled(value, values) for value in self.ours.args)
        kwargs = {key: _filled(value, values) for key, value in self.ours.kwargs.items()}
        return Call(self.ours.name, args, kwargs)


class MarkerMap:
    """The lines, checked."""

    def __init__(self, rules: tuple[Rule, ...] = ()) -> None:
        self.rules = rules

    def __eq__(self, other: object) -> bool:
        texts = [rule.text for rule in self.rules]
        return isinstance(other, MarkerMap) and texts == [rule.text for rule in other.rules]

    def __hash__(self) -> int:
        return hash(tuple(rule.text for rule in self.rules))

    def read(self, mark: Mark) -> Iterator[Call]:
        """Yield what a mark of another suite stands for.

        Raises:
            ValueError: Its name is in the map, and its arguments fit no line.

        """
        about = [rule for rule in self.rules if rule.name.fullmatch(mark.name)]
        found = [made for rule in about if (made := rule.reads(mark)) is not None]
        if about and not found:
            raise ValueError(
                f"@pytest.mark.{shown(mark)} fits none of what cuda_fork_marker_map says of it: "
                f"{'; '.join(rule.text for rule in about)}"
            )
        for made in found:
            if any(rule.name.fullmatch(made.name) for rule in self.rules):
                yield from self.read(made)
            else:
                yield made


def iter_marks(
    item: pytest.Item, marker_map: MarkerMap
) -> Iterator[tuple[Mark, pytest.Mark | None]]:
    """Yield the marks of a test, the closest first, each with the one that it was read from.

    On one function, class or module the marks that are there come before those that are read.

    Raises:
        ValueError: a mark that is mapped has arguments that fit no line.

    """
    node: object = None
    read: list[tuple[Mark, pytest.Mark | None]] = []
    for at, mark in item.iter_markers_with_node():
        if at is not node:
            yield from read
            node, read = at, []
        yield mark, None
        read.extend((made, mark) for made in marker_map.read(mark))
    yield from read


def shown(mark: Mark) -> str:
    """Return a mark as it is written, without the ``@pytest.mark.``."""
    args = [repr(arg) for arg in mark.args]
    args += [f"{key}={value!r}" for key, value in mark.kwargs.items()]
    return f"{mark.name}({', '.join(args)})" if args else mark.name


# -- reading the option --------------------------------------------------------------------------


def parse_map(text: str, ours: Mapping[str, Mapping[str, object]]) -> MarkerMap:
    """Read the option, whose lines are joined by commas.

    Args:
        text: The lines.
        ours: Our markers that may stand on the right, each with its keywords.

    Raises:
        ValueError: A line is none, names no marker of ours, or makes a circle.

    """
    rules = tuple(_rule(line) for line in _split(text))
    for rule in rules:
        _check(rule, rules, ours)
    return MarkerMap(rules)


def _split(text: str) -> list[str]:
    """Split at the commas and line ends that stand in no bracket or text."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        if character in ",\n" and depth <= 0 and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _rule(line: str) -> Rule:
    theirs, ours = _sides(line)
    groups: list[str] = _IN_NAME.findall(theirs.partition("(")[0])
    name, bracket, args = theirs.partition("(")
    left = _call(line, _IN_NAME.sub("0", name) + bracket + args)
    given = [*groups, *_placeholder_names(left)]
    twice = next((name for name in given if given.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{line!r}: the left side gives {twice!r} twice")
    pattern = "".join(
        f"(?P<{part}>[0-9]+)" if index % 2 else re.escape(part)
        for index, part in enumerate(_IN_NAME.split(name.strip()))
    )
    right = _call(line, ours)
    unknown = sorted({*_placeholder_names(right), *_names_in_texts(right)} - set(given))
    if unknown:
        raise ValueError(f"{line!r}: the left side gives no {unknown[0]!r}")
    return Rule(line, re.compile(pattern), left, right)


def _sides(line: str) -> tuple[str, str]:
    """Split a line at the first equals sign outside brackets."""
    depth = 0
    for index, character in enumerate(line):
        depth += (character == "(") - (character == ")")
        if character == "=" and depth == 0:
            return line[:index].strip(), line[index + 1 :].strip()
    raise ValueError(f"{line!r} is no line of a map: write distributed(num_gpus=n) = gpus(n)")


def _call(line: str, text: str) -> Call:
    """Read one side of a line."""
    try:
        node = ast.parse(text, mode="eval").body
        if isinstance(node, ast.Call):
            args = tuple(_value(arg) for arg in node.args)
            kwargs = {str(each.arg): _value(each.value) for each in node.keywords if each.arg}
            if len(kwargs) == len(node.keywords):
                return Call(_name(node.func), args, kwargs)
        else:
            return Call(_name(node))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        pass
    raise ValueError(
        f"{line!r}: {text!r} is no marker: write a name, with arguments in brackets if it has any"
    )


def _name(node: ast.expr) -> str:
    if not isinstance(node, ast.Name):
        raise ValueError("no name")
    return node.id


def _value(node: ast.expr) -> Value:
    return Placeholder(node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)


def _placeholder_names(call: Call) -> list[str]:
    values = (*call.args, *call.kwargs.values())
    return [value.name for value in values if isinstance(value, Placeholder)]


def _names_in_texts(call: Call) -> list[str]:
    values = (*call.args, *call.kwargs.values())
    texts = [value for value in values if isinstance(value, str)]
    return [name for text in texts for name in _IN_NAME.findall(text)]


def _check(rule: Rule, rules: tuple[Rule, ...], ours: Mapping[str, Mapping[str, object]]) -> None:
    """Check where a line leads.

    Raises:
        ValueError: To no marker of ours, to a keyword that it does not take, or in a circle.

    """
    for name in ours:
        if rule.name.fullmatch(name):
            raise ValueError(f"{rule.text!r}: {name} is this plugin's own, and stays as it is")
    path, name = [rule.text], rule.ours.name
    waiting = [rule]
    for _ in range(_MOST_STEPS):
        # Each line once: of several about one marker each would bring all that follow.
        names = {before.ours.name for before in waiting} - ours.keys()
        following = [after for after in rules if any(after.name.fullmatch(name) for name in names)]
        if not following:
            break
        path += [each.text for each in following[:1]]
        waiting = following
    else:
        raise ValueError(f"the lines make a circle: {'; '.join(dict.fromkeys(path))}")
    for last in waiting:
        name = last.ours.name
        if name not in ours:
            raise ValueError(
                f"{last.text!r}: there is no marker {name!r}: use {', '.join(sorted(ours))}"
            )
        wrong = sorted(set(last.ours.kwargs) - set(ours[name]))
        if wrong:
            takes = f"it takes {', '.join(ours[name])}" if ours[name] else "it takes no arguments"
            raise ValueError(f"{last.text!r}: {name} does not take {wrong[0]!r}: {takes}")


def _fits(wanted: Value, given: object, values: dict[str, Value]) -> bool:
    """Whether a mark's argument is what a line wants; a name for it gets it as its value."""
    if isinstance(wanted, Placeholder):
        values[wanted.name] = given
        return True
    return type(wanted) is type(given) and bool(wanted == given)


def _filled(value: Value, values: Mapping[str, Value]) -> Value:
    if isinstance(value, Placeholder):
        return values[value.name]
    if isinstance(value, str):
        return _IN_NAME.sub(lambda match: str(values.get(match[1], match[0])), value)
    return value
