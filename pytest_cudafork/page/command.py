"""``python -m pytest_cudafork html``: its arguments, what it writes, its exit status."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from pytest_cudafork.documents.form import FORMAT, FORMAT_VERSION
from pytest_cudafork.documents.writing import printable, write_at_once
from pytest_cudafork.observe.story.plain_text import plain
from pytest_cudafork.settings.arguments import check_new_file, check_old_file
from pytest_cudafork.settings.report_options import lacks_for_html

WRITTEN, USAGE = 0, 2


class DocumentError(ValueError):
    """The input is no document of a session; Recoverable by other input."""


def main(args: Sequence[str]) -> int:
    """Write the page of a session's document.

    Args:
        args: What follows ``python -m pytest_cudafork html``.

    Returns:
        0: it was written. 2: the arguments are wrong, the file is no document of a session, or
        the page cannot be written.

    """
    parser = _parser()
    given = parser.parse_args(args)
    if lacks := lacks_for_html():
        parser.exit(USAGE, f"{parser.prog}: error: {lacks}\n")
    try:
        _refuse_page(given.session, given.page)
        page = _page_of(given.session)
        write_at_once(given.page, page)
    except (DocumentError, OSError) as error:
        words = f"{parser.prog}: error: {plain(str(error))}\n"
        parser.exit(USAGE, printable(words))
    sys.stdout.write(printable(f"HTML: {plain(given.page)}\n"))
    return WRITTEN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_cudafork html",
        description="Write the page of --cuda-fork-html from the JSON of a session "
        "(--cuda-fork-json=FILE). Exit status: 0 if it was written, 2 if not, whatever became of "
        "the session.",
    )
    parser.add_argument("session", metavar="JSON", help="The session's JSON; -: standard input.")
    parser.add_argument("page", metavar="PAGE", help="The HTML file to write.")
    return parser


def _refuse_page(session: str, page: str) -> None:
    try:
        check_new_file(page)
    except ValueError as error:
        raise DocumentError(str(error)) from None
    if session != "-" and os.path.exists(page) and os.path.samefile(session, page):
        raise DocumentError(f"{page}: the page would be written over the session's JSON")


def _page_of(name: str) -> str:
    """Return the page of the document in a file.

    Raises:
        DocumentError: It is none of a session, or not whole.
        OSError: It cannot be read.

    """
    from jinja2 import TemplateError

    from pytest_cudafork.page.rendering import page_of

    document = _read(name)
    try:
        return page_of(document)
    except (
        LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError,
        TemplateError,
    ) as error:  # fmt: skip
        raise DocumentError(
            f"{name} has the head of a session's document but not its form "
            f"({type(error).__name__}: {error}): pytest_cudafork/documents/schema.json has the form"
        ) from error


def _read(name: str) -> dict[str, Any]:
    """Return the document in a file.

    Raises:
        DocumentError: It is none of a session in a form that is known here.
        OSError: It cannot be read.

    """
    if name == "-" and sys.stdin is None:
        raise DocumentError("there is no standard input: name a file")
    try:
        check_old_file(name)
    except ValueError as error:
        raise DocumentError(f"{error}; -: standard input") from None
    try:
        if name == "-":
            document = json.load(sys.stdin.buffer)
        else:
            with open(name, "rb") as file:
                document = json.load(file)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{name} is no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DocumentError(
            f"{name} is no document of pytest-cudafork: write one with --cuda-fork-json"
        )
    if document.get("format_version") != FORMAT_VERSION:
        raise DocumentError(
            f"{name} has version {document.get('format_version')!r} of the form, and this release "
            f"reads {FORMAT_VERSION}: write the page with the release that wrote the document"
        )
    if document.get("kind") != "session":
        raise DocumentError(
            f"{name} is about {document.get('kind')!r}: the page is that of a session "
            "(--cuda-fork-json)"
        )
    return document
