"""The section in the report of pytest-html."""

from __future__ import annotations

import html
import re

import pytest

from tests.support.isolation_plugins import needs
from tests.support.sessions import check, module, run_session

TESTS = module(
    """
@pytest.mark.parametrize("word", ["</script><b>"])
def test_touches(word):
    touch()

@pytest.mark.cuda_isolated(method="forkserver")
def test_isolated():
    pass

def test_forks():
    os.fork()
"""
)


def plugins() -> tuple[str, ...]:
    """Return the arguments that load pytest-html."""
    return ("-p", needs("metadata"), "-p", needs("html"), "-p", "pytest_html.fixtures")


def test_the_report_says_what_was_seen_and_links_to_the_page(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    pytester.mkdir("reports")
    files = ("--html=reports/report.html", "--cuda-fork-html=page.html")
    result = check(pytester, "fork", *plugins(), *files)
    assert result.ret == 1
    assert "INTERNALERROR" not in result.stdout.str()
    text = (pytester.path / "reports" / "report.html").read_text(encoding="utf-8")
    (section,) = re.findall(
        r'<details class="pytest-cudafork" open>.*?</table>\n?</details>', text, re.S
    )
    assert 'href="../page.html"' in section
    assert "Not good: exit status 1, tests or checks failed" in section
    assert "fork refused at test_it.py" in section
    assert "<td>forkserver</td><td>1</td>" in section
    assert "test_touches[</script" not in text
    assert html.unescape("test_touches[&lt;/script&gt;&lt;b&gt;]") not in section
    assert (pytester.path / "page.html").exists()


def test_a_session_that_the_plugin_has_nothing_to_do_with_has_no_section(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("def test_a(): pass")
    result = run_session(pytester, *plugins(), "--html=report.html")
    assert result.ret == 0
    assert "pytest-cudafork" not in (pytester.path / "report.html").read_text(encoding="utf-8")
