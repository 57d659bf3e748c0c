"""Messages that do not stand in one line as a whole: broken into several lines, or cut.

A terminal breaks a line in the middle of a word, so blanks are left out of what is compared. A log
or report that shortens its lines keeps the beginning of a message: it counts if it is so long that
no other message of another kind begins with it, and if something shows that it was cut.
"""

from __future__ import annotations

from typing import NamedTuple

from pytest_cudafork.compat.unpatched import re
from pytest_cudafork.explain.messages import MESSAGES, Message

_LOGGED = re.compile(r"(?:.*[\])|│:>]|-|E|DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL)")
"""What may stand before a message that goes on: the prefix of a logger or worker, pytest's E."""
_ELLIPSIS = re.compile(r"\.{3,}|…|[\[<(]\s*(?:truncated|snip|cut)\b")
_CLOSING = " \t\r\n\"'`]})>,[(<"
"""What may follow, in the same line, where a text within a literal or box was cut."""
_END = 3
"""Characters by which it is looked up what a line may end with."""
_SHORTEST = 2
"""Characters of a word that are followed into the next line: many lines end with the first one."""
_TELLING = 12
"""So many characters of a message are looked for anywhere in the next line."""
_CUT = 18
"""So many characters of a message, and more than half of it, tell it without the rest."""

_REACH = 200
"""Characters before a break that are looked at; messages are shorter."""


class Beginning(NamedTuple):
    """What a line ends with: the first words of a message, of which ``rest`` is to follow.

    Attributes:
        message: Which one.
        rest: What is to follow, without blanks; "" where it is complete.
        in_word: Whether the break is in the middle of a word.
        said: How many characters are there, without blanks.

    """

    message: Message
    rest: str
    in_word: bool = False
    said: int = 0


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _end_of(text: str) -> str:
    return _squeezed(text.rstrip()[-_REACH:])


def _beginnings() -> dict[str, dict[str, list[Beginning]]]:
    """Return the places at which each message can be broken, by what stands before the break.

    They are sorted by the ends of that, so that for nearly all lines there is nothing to compare.
    """
    found: dict[str, dict[str, list[Beginning]]] = {}
    for message in MESSAGES:
        words = message.words
        for place in range(1, len(words)):
            if words[place - 1] == " ":
                continue
            in_word = words[place] != " "
            said, rest = _squeezed(words[:place]), _squeezed(words[place:])
            if len(said) >= _SHORTEST or not in_word:
                by_said = found.setdefault(said[-_END:], {})
                beginning = Beginning(message, rest, in_word, len(said))
                by_said.setdefault(said, []).append(beginning)
    return found


_BEGINNINGS = _beginnings()


def beginnings_in(line: str) -> list[Beginning]:
    """Return the messages that the end of a line begins."""
    return _begun_by(_end_of(line))


def _begun_by(squeezed: str) -> list[Beginning]:
    by_said = [_BEGINNINGS.get(squeezed[-length:]) for length in range(1, _END + 1)]
    return [
        each
        for some in filter(None, by_said)
        for said, beginnings in some.items()
        if squeezed.endswith(said)
        for each in beginnings
    ]


def goes_on(beginning: Beginning, line: str) -> Beginning | None:
    """Return how a message goes on in the next line; None if it does not.

    Its ``rest`` is "" where the line ends it. The line may begin as lines of a log do.
    """
    words, rest = line.split(), beginning.rest
    for start in range(len(words)):
        logged = not start or _LOGGED.fullmatch(words[start - 1]) is not None
        if not logged and len(rest) < _TELLING:
            continue
        said = "".join(words[start:])
        if said.startswith(rest):
            return beginning._replace(rest="")
        if logged and rest.startswith(said):
            return beginning._replace(rest=rest[len(said) :])
    return None


def cut_in(line: str, *, is_last: bool = False) -> tuple[Message, ...]:
    """Return the messages of which a line may hold the beginning alone, all of one kind.

    Args:
        line: The line.
        is_last: Whether the log was cut at its end.

    """
    *parts, end = _ELLIPSIS.split(line)
    found = [each for part in parts for each in _told(part)]
    found += [each for each in _told(end) if each.in_word or is_last]
    messages = tuple(dict.fromkeys(each.message for each in found))
    return messages if len({message.kind for message in messages}) == 1 else ()


def _told(text: str) -> list[Beginning]:
    """Return the messages that the end of a text begins; none where it tells too little of them."""
    begun = _begun_by(_end_of(text.rstrip(_CLOSING)))
    if not begun:  # as in nearly all lines
        return []
    most = max(each.said for each in begun)  # "cuInit failed: ini" and ": ini"
    longest = [each for each in begun if each.said == most]
    tells = any(most > len(each.rest) for each in longest)
    return longest if tells and most >= _CUT else []
