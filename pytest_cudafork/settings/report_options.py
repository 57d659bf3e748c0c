"""What the options of files for other programs mean; most sessions have none of them."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from pytest_cudafork.settings import environment
from pytest_cudafork.settings.arguments import check_new_files
from pytest_cudafork.settings.import_options import BASELINE as IMPORTS_BASELINE
from pytest_cudafork.settings.import_options import GRAPH as IMPORTS_GRAPH
from pytest_cudafork.settings.options import (
    BASELINE,
    GITHUB,
    HTML,
    JSON,
    LEDGER,
    PACK,
    PROFILE,
    SARIF,
    TRACE,
    Settings,
)

ANNOTATIONS = "annotations"
SUMMARY = "summary"
_ALL, _OFF = "all", "off"
GITHUB_KINDS = (ANNOTATIONS, SUMMARY)
"""What a session may write for GitHub Actions."""
_ALLOWED = ", ".join((*GITHUB_KINDS, _ALL, _OFF))


def parse_github(text: str) -> tuple[str, ...]:
    """Read what to write for GitHub Actions.

    Raises:
        ValueError: one of the words is not known.

    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ValueError(f"{text!r} names nothing: use {_ALLOWED}")
    for word in words:
        if word not in (*GITHUB_KINDS, _ALL, _OFF):
            raise ValueError(f"{word!r} is not written for GitHub: use {_ALLOWED}")
        if word in (_ALL, _OFF) and len(words) > 1:
            raise ValueError(f"{word!r} stands alone")
    if words == [_ALL]:
        return GITHUB_KINDS
    return () if words == [_OFF] else tuple(dict.fromkeys(words))


def checked(settings: Settings, namespace: Any) -> Settings:
    """Return the settings without what a session inside a test must not write.

    Such a session inherits the variables of the session of that test, and would write over its
    files; so what the environment alone asks for is not written there.

    Args:
        settings: What all sources say.
        namespace: The parsed command line, where an option that was not given is None.

    Raises:
        pytest.UsageError: a file cannot be one, or would be written over something else.

    """
    options = {"json": JSON, "sarif": SARIF, "trace": TRACE, "html": HTML, "github": GITHUB}
    if environment.is_set(environment.TEST):
        inherited: dict[str, Any] = {
            field: type(getattr(settings, field))()
            for field, option in options.items()
            if not getattr(namespace, option.name, None) and environment.value(option.env)
        }
        settings = settings._replace(**inherited)
    others = {
        "--junitxml": getattr(namespace, "xmlpath", None) or "",
        "--html": getattr(namespace, "htmlpath", None) or "",  # of pytest-html
        IMPORTS_BASELINE.flag: settings.imports.baseline,
        LEDGER.flag: settings.ledger,
        BASELINE.flag: settings.baseline,
        PACK.flag: settings.pack,
        PROFILE.flag: settings.profile,
    }
    files = (
        (IMPORTS_GRAPH.flag, settings.imports.graph),
        (JSON.flag, settings.json),
        (SARIF.flag, settings.sarif),
        (TRACE.flag, settings.trace),
        (HTML.flag, settings.html),
    )
    try:
        check_new_files(files, others)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if settings.html and (lacks := lacks_for_html()):
        raise pytest.UsageError(f"{HTML.flag}: {lacks}")
    return settings


def lacks_for_html() -> str:
    """Return what is to be installed before a page can be written, in words; "": nothing.

    Nothing is imported for it.
    """
    if importlib.util.find_spec("jinja2") is not None:
        return ""
    return "the page is made with Jinja2, which is not installed: pip install pytest-cudafork[html]"
