"""The section in the report of pytest-html: there where there is something to say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.page.in_pytest_html import HtmlSection
from tests.support import session_documents as sessions

pytest.importorskip("jinja2", reason="makes the section")


def section(document: dict[str, Any], page: str = "", report: str = "report.html") -> list[str]:
    """Return what is put below the summary of the report."""
    session: Any = SimpleNamespace(config=SimpleNamespace(option=SimpleNamespace(htmlpath=report)))
    postfix: list[str] = []
    HtmlSection(lambda _: document, page).pytest_html_results_summary(postfix, session)
    return postfix


@pytest.mark.parametrize(
    "changed",
    [
        {"check": sessions.check()},
        {"imports": sessions.audit()},
        {"captures": [sessions.capture()]},
        {"captured_graphs": sessions.full()["captured_graphs"]},
        {"tests": [sessions.a_test(0, method="fork")]},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_session_in_which_the_plugin_had_something_to_do_has_it(changed: Any) -> None:
    (text,) = section(sessions.document(**{"check": None, **changed}))
    assert "CUDA and fork" in text


def test_another_session_has_none() -> None:
    assert section(sessions.document(check=None)) == []


def test_it_links_to_the_page_from_where_the_report_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPORTS", str(tmp_path / "reports"))
    (text,) = section(sessions.full(), str(tmp_path / "page.html"), "$REPORTS/a/report.html")
    assert 'href="../../page.html"' in text
    assert "href" not in section(sessions.full())[0]
