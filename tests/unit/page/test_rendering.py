"""The page: what of the document is on it, and that nobody's text is more than text."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from tests.support import session_documents as sessions
from tests.support.documents import validated

pytest.importorskip("jinja2", reason="makes the page")

from pytest_cudafork.page.rendering import asset, duration, page_of, section_of

VOID = frozenset({"meta", "input", "link", "br"})


class Page(HTMLParser):
    """Reads a page: its tags, their nesting, its scripts, its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.scripts: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.ids: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag == "script":
            self.scripts.append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open[-1] in ("li", "td", "tr") and self._open[-1] != tag:
            self._open.pop()
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts[-1] += data
        elif self._open and self._open[-1] != "style":
            self.text += data


def page(document: dict[str, Any]) -> Page:
    """Return the page of a document, read."""
    return Page(page_of(document))


@pytest.mark.parametrize("name", ["document", "full"])
def test_the_documents_that_the_tests_show_keep_to_the_schema(name: str) -> None:
    validated(getattr(sessions, name)(), "session")


def test_the_page_has_all_that_the_document_says() -> None:
    text = re.sub(r"\s+", " ", page(sessions.full()).text)
    for words in (
        "Not good: exit status 1, tests or checks failed",
        "no witness in process 16",  # what was not seen
        "the records of process 16",
        "hook pytest_cudafork_touch of conftest.py:3: ValueError",
        "tests/test_no.py",  # not collected
        "tests/test_gpu.py",  # skipped as a whole
        "AssertionError: 0",
        "fork refused because of the line",  # a finding
        "pkg/gate.py:3: class body of Gate, evaluated at import",  # a touch, its code and chain
        "2 times in 2 processes",
        "x = Gate()",
        "import pkg.gate",
        "make it lazy",
        "os.fork()",
        "python program.py",
        "fork server 11",  # the timeline
        "GPU 0",
        "not fork: 2 threads",  # the cost of isolation
        "pkg.m5",  # the audit
        "aten::mul_2",  # nodes of a capture
        "6 nodes in the graph",
        "Which work is in the graph is not known.",
        "wrong-contents: no other descriptor",
        "2 values: an operator without a rule",
        "it reads what is out of date",
        "No test failed with it",
        "it looks at no result",
        "it failed by itself",
    ):
        assert words in text, words


def test_nothing_is_green_where_the_session_is_not_good() -> None:
    cases: dict[str, dict[str, Any]] = {
        "good": {},
        "unsure": {"not_observable": ["x"]},
        "bad": {"good": False},
    }
    for state, changed in cases.items():
        text = page_of(sessions.document(**changed))
        assert re.findall(r'<p class="pill (\w+)" id="verdict">', text) == [state]
        assert re.findall(r'<div class="banner (\w+)">', text)[0] == state


@pytest.mark.parametrize("key", ["check", "imports", "captured_graphs", "replay_audit"])
def test_what_was_not_done_is_said(key: str) -> None:
    text = page({**sessions.full(), key: None}).text
    words = {
        "check": "Nobody watched for touches and forks",
        "imports": "No package was audited",
        "captured_graphs": "Nobody looked at them",
        "replay_audit": "",
    }
    assert words[key] in text


def test_an_empty_session_has_a_page() -> None:
    empty: dict[str, Any] = {"processes": [], "events": []}
    text = page(sessions.document(tests=[], timeline=empty, check=None)).text
    assert "no test ran" in text


def test_hostile_text_is_only_text() -> None:
    harmless, spoiled = page(sessions.full()), page(sessions.hostile())
    assert [tag for tag, _ in spoiled.tags] == [tag for tag, _ in harmless.tags]
    assert [names for _, names in spoiled.tags] == [names for _, names in harmless.tags]
    assert spoiled.scripts[0] == harmless.scripts[0]
    assert spoiled.scripts[2:] == harmless.scripts[2:]
    shown = sessions.HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b")
    assert shown.replace("\udcff", "\\udcff") in spoiled.text
    assert "{{7*7}}" in spoiled.text, "text is no template"
    for character in ("\u202e", "\x1b", "\udcff"):
        assert character not in spoiled.text


def test_attributes_hold_no_address_but_those_of_the_page() -> None:
    spoiled = page(sessions.hostile())
    addresses = [
        value for _, name, value in spoiled.attributes if name in ("href", "src", "action")
    ]
    assert addresses
    assert all(value is not None and re.fullmatch(r"#[\w-]+", value) for value in addresses)
    targets = {value[1:] for value in addresses if value is not None}
    assert targets <= set(spoiled.ids)
    assert len(spoiled.ids) == len(set(spoiled.ids))
    assert not [name for _, name, _ in spoiled.attributes if name.startswith("on")]
    styles = [value for _, name, value in spoiled.attributes if name == "style"]
    assert styles
    assert all(
        re.fullmatch(r"[a-z-]+:[\d.]+(%|px)(;width:[\d.]+%)?", value or "") for value in styles
    )


def test_only_the_scripts_of_the_page_may_run() -> None:
    text = page_of(sessions.full())
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert found is not None
    policy = found[1].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    allowed = re.findall(r"'sha256-([^']+)'", policy)
    scripts = [script for script in Page(text).scripts if not script.startswith("{")]
    assert allowed == [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    assert len(scripts) == 4
    assert "http" not in policy


def test_without_a_graph_there_are_no_libraries_to_draw_one() -> None:
    text = page_of(sessions.document())
    assert len(Page(text).scripts) == 2
    assert len(text) < 60_000


def test_the_section_says_the_same_in_short_and_links_to_the_page() -> None:
    text = section_of(sessions.full(), "sub folder/page.html")
    assert 'href="sub%20folder/page.html"' in text
    assert "Not good: exit status 1" in text
    assert "no witness in process 16" in text
    assert "fork refused" in text
    assert "pkg/gate.py:3" in text
    assert "<script" not in section_of(sessions.hostile(), "")
    assert "href" not in section_of(sessions.full(), "")
    assert '<details class="pytest-cudafork" open>' in text
    assert "open" not in section_of(sessions.document(), "").partition(">")[0]


def test_the_section_links_to_a_page_of_any_name() -> None:
    text = section_of(sessions.full(), os.fsdecode(b"\xff#\xc3\xa9.html"))
    assert 'href="%FF%23%C3%A9.html"' in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.0 ms"),
        (0.0004, "0.4 ms"),
        (0.0123, "12 ms"),
        (1.234, "1.23 s"),
        (119.99, "119.99 s"),
        (200.4, "3 min 20 s"),
        (360000, "6,000 min 0 s"),
    ],
)
def test_times_are_told_with_the_digits_that_count(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_document_without_its_keys_is_an_error() -> None:
    made = sessions.full()
    del made["tests"][0]["phases"]
    with pytest.raises(Exception, match="phases"):
        page_of(made)


def test_the_files_of_the_page_end_no_element_early() -> None:
    for name in ("first.js", "page.js"):
        assert "</script" not in asset(name).lower()
        assert "<!--" not in asset(name)
    assert "</style" not in asset("page.css").lower()
