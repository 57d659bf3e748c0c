"""A section in the report of pytest-html, where that plugin writes one (``--html=FILE``)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

Document = dict[str, Any]


class HtmlSection:
    """The plugin object.

    Args:
        document: Returns the document of a session as far as it is known.
        page: The file of the whole page, or "".

    """

    def __init__(self, document: Callable[[pytest.Session], Document], page: str) -> None:
        self._document = document
        self._page = page

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_summary(self, postfix: list[str], session: pytest.Session) -> None:
        """Add the section below the summary of the report."""
        document = self._document(session)
        if not _tells_something(document):
            return
        from pytest_cudafork.page.rendering import section_of

        postfix.append(section_of(document, self._link(session.config)))

    def _link(self, config: pytest.Config) -> str:
        """Return where the page is, seen from the report."""
        if not self._page:
            return ""
        report = os.path.expanduser(os.path.expandvars(config.option.htmlpath))  # as pytest-html
        return os.path.relpath(self._page, os.path.dirname(os.path.abspath(report)))


def _tells_something(document: Document) -> bool:
    """Whether this plugin had anything to do in the session."""
    return bool(
        document["check"] is not None
        or document["imports"] is not None
        or document["captures"]
        or document["captured_graphs"] is not None
        or any(test["isolation"] is not None for test in document["tests"])
    )
