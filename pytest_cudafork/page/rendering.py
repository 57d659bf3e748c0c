"""Makes the page: what the document of a session says, in templates of Jinja2.

Everything that a session has gathered is other people's text. The templates escape it, what cannot
be printed is shown as an escape, and the policy of the page lets no script run but its own, each by
its hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pytest_cudafork.documents.writing import json_text
from pytest_cudafork.imports.graph import picture
from pytest_cudafork.page.costs import costs_of
from pytest_cudafork.page.timeline import ticks_of, timeline_of
from pytest_cudafork.page.touches import programs_of, test_of, touch_groups
from pytest_cudafork.page.verdict import verdict_of

if TYPE_CHECKING:
    import jinja2

_NEVER_SHOWN = {
    ord(control): control.encode("unicode_escape").decode("ascii")
    for control in map(
        chr, (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    )
    if control not in "\t\n"
}
"""Controls, and what changes the direction in which the text after it is read."""
_SHORT, _LONG = 1.0, 120.0
"""Seconds: below the one milliseconds are told, above the other minutes."""


class PageError(ValueError):
    """A page cannot be made here; Recoverable by another environment."""


def page_of(document: dict[str, Any]) -> str:
    """Return the page of a session's document.

    Raises:
        PageError: Jinja2 cannot be imported.
        KeyError: The document lacks a key. Other errors of its kind (``TypeError``,
            ``jinja2.UndefinedError``, ...) are raised as well where it has not the form that it
            should have.

    """
    document = _with_readable_text(document)
    audit = document["imports"]
    graph = None if audit is None else audit["graph"]
    scripts = _scripts(with_graph=graph is not None)
    return _rendered(
        "page.html",
        document,
        timeline=timeline_of(document),
        programs=programs_of(document),
        tests={test["test"]: number for number, test in enumerate(document["tests"])},
        graph=None if graph is None else _markup(picture.embedded(graph)),
        style=_markup(asset("page.css") + (picture.asset("picture.css") if graph else "")),
        picture=_markup(picture.asset("picture_body.html")),
        scripts={name: _markup(text) for name, text in scripts.items()},
        hashes=[_hash(text) for text in scripts.values()],
    )


def section_of(document: dict[str, Any], page: str) -> str:
    """Return the section for another page that tells of the same session.

    Args:
        document: The session's document.
        page: Where the whole page is, relative to the other one; "" where there is none.

    Raises:
        PageError: Jinja2 cannot be imported.

    """
    link = quote(os.fsencode(page))
    return _rendered("section.html", _with_readable_text(document), page=link)


def asset(name: str) -> str:
    """Return a file of the page as text."""
    return (resources.files("pytest_cudafork.page") / "assets" / name).read_text(encoding="utf-8")


def _rendered(template: str, document: dict[str, Any], **more: object) -> str:
    """Return a template with what is told of a session wherever it is told, and with more.

    Raises:
        PageError: Jinja2 cannot be imported.

    """
    return (
        _environment(document["root"])
        .get_template(template)
        .render(
            document=document,
            verdict=verdict_of(document),
            costs=costs_of(document),
            touches=touch_groups(document),
            **more,
        )
    )


def _with_readable_text(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document as a reader of its JSON gets it."""
    made: dict[str, Any] = json.loads(json_text(document, indent=None))
    return made


def _environment(root: str) -> jinja2.Environment:
    """Return what renders the templates; paths are shown relative to the root folder.

    Raises:
        PageError: Jinja2 cannot be imported.

    """
    try:
        import jinja2
    except ImportError as error:  # it was there when the session began
        raise PageError(f"Jinja2 cannot be imported: {error}") from error

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    here = root.rstrip(os.sep) + os.sep
    filters: dict[str, Callable[[Any], Any]] = {
        "short": lambda path: path.removeprefix(here),
        "seconds": duration,
        "count": lambda number: f"{number:,}",
        "percent": lambda number: f"{float(number):.4f}",
        "counted": lambda values: list(Counter(values).items()),
        "test_of": test_of,
        "ticks": ticks_of,
    }
    environment.filters.update(filters)
    return environment


def _shown(value: object) -> object:
    """Return what a template shows of a value."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return value.translate(_NEVER_SHOWN)
    return value


def duration(seconds: float) -> str:
    """Return a time in words, with as many digits as can be trusted."""
    if seconds < _SHORT:
        return f"{1e3 * seconds:.{0 if seconds >= 0.01 else 1}f} ms"
    if seconds < _LONG:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes:,} min {rest} s"


def _scripts(*, with_graph: bool) -> dict[str, str]:
    """Return the scripts of the page, by the name of their place in it."""
    scripts = {"first": asset("first.js")}
    if with_graph:
        scripts["libraries"] = picture.libraries()
        scripts["picture"] = picture.asset("picture.js")
    return {**scripts, "page": asset("page.js")}


def _markup(text: str) -> object:
    """Return text of this package, or text that is escaped, as what a template takes as it is."""
    from markupsafe import Markup

    return Markup(text)


def _hash(script: str) -> str:
    """Return by what a browser knows a script that may run."""
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
