"""The page of a session in Chromium: it loads nothing; filters, search, keys and themes work."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="drives the browser: make test-html")

from pytest_cudafork.page.rendering import page_of
from tests.browser.chromium import Shown, browser
from tests.support import session_documents as sessions

Show = Callable[..., Shown]
SECTIONS = ("overview", "tests", "timeline", "touches", "isolation", "imports", "captures")
FIRST_PAINT_S = 2.0
"""Within this a page of 1,000 tests and 953 audited modules is to be seen."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Return the browser of these tests."""
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the pages of the documents that are shown, by their names."""
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name in ("document", "full", "hostile", "large"):
        made[name] = folder / f"{name}.html"
        made[name].write_text(page_of(getattr(sessions, name)()), encoding="utf-8")
    return made


@pytest.fixture
def show(chromium: Any, files: dict[str, Path]) -> Iterator[Show]:
    """Return what shows a page; at the end each is looked at for what it must not do."""
    tabs: list[Shown] = []

    def opened(name: str, **options: Any) -> Shown:
        tabs.append(Shown(chromium, files[name], **options))
        return tabs[-1]

    yield opened
    for tab in tabs:
        tab.check()


@pytest.mark.parametrize("name", ["document", "full", "hostile", "large"])
def test_every_section_is_shown_without_a_complaint_or_a_request(show: Show, name: str) -> None:
    shown = show(name)
    for number, section in enumerate(SECTIONS, 1):
        shown.press(str(number))
        assert shown.section == section
        current = shown.page.locator("nav a[aria-current]")
        assert current.count() == 1
        assert current.get_attribute("href") == f"#{section}"
    if name != "document":
        shown.press("6")
        shown.page.locator("#graph-box > summary").click()
        shown.page.wait_for_selector("#graph canvas")
        assert shown.page.locator("#culprits li").count() == 1


def test_hostile_text_runs_nowhere(show: Show) -> None:
    shown = show("hostile")
    for row in shown.page.locator("details").all():
        row.evaluate("(element) => { element.open = true }")
    shown.page.wait_for_timeout(100)
    assert (
        shown.page.locator("main b:not(.chip b, .finding b, .row > p > b, #culprits b)").count()
        == 0
    )
    assert shown.page.evaluate("() => document.querySelectorAll('script').length") == 5
    shown.press("6")
    shown.page.wait_for_selector("#graph canvas")  # its box is open as well
    read = shown.page.evaluate("() => document.body.innerText")
    assert "\\u202e" in shown.page.locator("#title").inner_text()
    assert not {"\u202e", "\x1b", "\udcff"} & set(read), "no control, no half a character"
    shown.search("</script><script>alert(1)")
    shown.press("Escape")
    shown.page.goto(f"{shown.address}#</script>%22%5C")
    assert shown.section == "overview", "an address that leads nowhere"
    shown.requests[:] = shown.requests[:1]


def test_a_search_filters_the_section_and_counts_in_all(show: Show) -> None:
    shown = show("large")
    shown.press("2")
    whole = len(shown.rows())
    shown.search("number[12")
    rows = shown.rows()
    assert 0 < len(rows) < whole
    assert all("number[12" in row for row in rows)
    assert shown.page.locator("#tests .shown-count").inner_text() == f"{len(rows)} of 1,000 shown"
    assert shown.page.locator("nav a[href='#tests'] .number").inner_text() == str(len(rows))
    assert shown.page.locator("nav a[href='#imports'] .number").inner_text() == "0"
    shown.press("Escape")
    assert len(shown.rows()) == whole
    assert shown.page.locator("nav a[href='#imports'] .number").inner_text() == "953"
    shown.search("AssertionError 44]")  # words in what a row holds, in any order
    numbers = ("44", *(f"{n}44" for n in range(1, 10)))
    assert shown.rows() == [f"tests/test_it.py::test_number[{number}]" for number in numbers]


def test_chips_filter_by_what_rows_are(show: Show) -> None:
    shown = show("large")
    shown.press("2")
    shown.page.locator("#tests .chip[data-value=failed]").click()
    assert len(shown.rows()) == 200
    shown.page.locator("#tests .chip[data-value=skipped]").click()
    assert len(shown.rows()) == 400, "of one kind any"
    shown.page.locator("#tests .chip[data-value=forkserver]").click()
    assert len(shown.rows()) == 200, "of several kinds each"
    shown.page.locator("#tests .chip[data-value=failed]").click()
    assert len(shown.rows()) == 100
    shown.press("6")
    shown.page.locator("#imports .chip[data-value=clean]").click()
    assert len(shown.rows()) == 382 + 1, "the line that initializes CUDA is no module"


def test_tests_can_be_ordered_by_what_they_cost(show: Show) -> None:
    shown = show("large")
    shown.press("2")
    shown.page.locator("#tests select").select_option("cost")
    assert shown.rows()[0] == "tests/test_it.py::test_number[999]"
    shown.page.locator("#tests select").select_option("order")
    assert shown.rows()[0] == "tests/test_it.py::test_number[0]"


def test_rows_are_walked_and_opened_by_keys(show: Show) -> None:
    shown = show("full")
    shown.press("2", "j")
    assert shown.focused() == "tests/test_it.py::test_number[0]"
    shown.press("j", "ArrowDown")
    assert shown.focused() == "tests/test_it.py::test_number[2]"
    shown.press("k", "Enter")
    assert shown.page.locator("#test-1").get_attribute("open") is not None
    assert "not fork: 2 threads" in shown.page.locator("#test-1").inner_text()
    shown.press("Enter")
    assert shown.page.locator("#test-1").get_attribute("open") is None
    shown.search("number[3]")
    shown.press("Enter")  # from the search to the first row that is left
    assert shown.focused() == "tests/test_it.py::test_number[3]"
    shown.press("k")
    assert shown.focused() == "tests/test_it.py::test_number[3]", "there is none before it"


def test_keys_that_are_typed_into_the_search_are_text(show: Show) -> None:
    shown = show("full")
    shown.search("2jt?")
    assert shown.page.locator("#search").input_value() == "2jt?"
    assert shown.section == "overview"
    shown.press("Escape", "?")
    assert shown.page.locator("#keys").is_visible()
    shown.press("2")
    assert shown.section == "overview", "the list of keys is in front"
    shown.press("Escape")
    assert not shown.page.locator("#keys").is_visible()


def test_a_link_to_a_test_shows_it_whatever_is_filtered(show: Show) -> None:
    shown = show("full")
    shown.press("2")
    shown.page.locator("#tests .chip[data-value=skipped]").click()
    shown.press("1")
    shown.page.locator("#overview a[href='#test-0']").click()
    shown.settle()
    assert shown.section == "tests"
    assert shown.focused() == "tests/test_it.py::test_number[0]"
    assert shown.page.locator("#test-0").is_visible()
    shown.page.go_back()
    shown.settle()
    assert shown.section == "overview"


def test_the_theme_is_the_machine_s_until_it_is_switched_and_then_kept(show: Show) -> None:
    light, dark = show("full"), show("full", color_scheme="dark")
    assert light.ground("header") != dark.ground("header")
    before = light.ground("header")
    light.press("t")
    assert light.ground("header") == dark.ground("header")
    light.page.reload()
    assert light.ground("header") == dark.ground("header")
    light.page.locator("#theme").click()
    light.settle()
    assert light.ground("header") == before
    light.requests[:] = light.requests[:1]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_readable_in_both_themes(show: Show, theme: str) -> None:
    shown = show("full", color_scheme=theme)
    for selector in (".pill.good", ".pill.unsure", ".pill.bad", ".pill.plain", ".card h3", "nav a"):
        ratio = shown.page.evaluate(CONTRAST, selector)
        assert ratio >= 4.5, f"{selector}: {ratio:.2f}"


CONTRAST = """(selector) => {
  const element = document.querySelector(selector);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  let behind = element;
  const clear = (each) => (parse(getComputedStyle(each).backgroundColor)[3] ?? 1) === 0;
  while (clear(behind) && behind.parentElement) behind = behind.parentElement;
  const light = (text) => {
    const [r, g, b] = parse(text).map((part) => part / 255)
      .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = getComputedStyle(behind).backgroundColor;
  const pair = [light(getComputedStyle(element).color), light(ground)];
  return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
}"""
"""The contrast of an element's text to what is behind it; WCAG asks for 4.5 at level AA."""


def test_the_timeline_can_be_looked_at_closely(show: Show) -> None:
    shown = show("large")
    shown.press("3")
    width = "() => document.querySelector('#axis').offsetWidth"
    whole = shown.page.evaluate(width)
    shown.press("+", "+", "+")
    assert shown.page.evaluate(width) == pytest.approx(8 * whole, rel=0.01)
    labels = shown.page.locator("#axis i").all_inner_texts()
    assert len(labels) > 10
    assert all(re.fullmatch(r"0|[\d.]+ (ms|s)", label) for label in labels)
    shown.press("j", "j")
    assert shown.focused() == "tests/test_it.py::test_number[0]"
    shown.press("0")
    assert shown.page.evaluate(width) == whole
    lanes = shown.page.locator(".lanes")
    assert lanes.evaluate("(e) => e.scrollWidth <= e.clientWidth + 1"), "nothing is cut off"


def test_nothing_is_wider_than_a_narrow_screen(show: Show) -> None:
    for name in ("full", "hostile"):
        shown = show(name, viewport={"width": 390, "height": 800})
        for number in range(1, len(SECTIONS) + 1):
            shown.press(str(number))
            over = shown.page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
            assert over <= 0, f"{name}, {shown.section}: {over} px"
        shown.press("5")
        assert shown.page.evaluate(LINES, ".figures th:first-child") == 1, "a word is not broken"


LINES = """(selector) => {
  const range = document.createRange();
  range.selectNodeContents(document.querySelector(selector));
  return range.getClientRects().length;
}"""
"""On how many lines an element's text stands."""


def test_without_scripts_all_of_it_can_be_read(chromium: Any, files: dict[str, Path]) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(files["full"].as_uri())
    for section in SECTIONS:
        assert page.locator(f"#{section} h2").first.is_visible()
    assert not page.locator("#search").is_visible()
    context.close()


def test_modules_are_found_in_the_picture_by_keys(show: Show) -> None:
    shown = show("large")
    shown.press("6")
    shown.page.locator("#graph-box > summary").focus()
    shown.press("Enter")
    shown.page.wait_for_selector("#graph canvas")
    shown.page.locator("#find").fill("part3.m150")
    shown.page.locator("#found li").first.focus()
    shown.press("Enter")
    assert shown.page.locator("#culprits li").first.get_attribute("tabindex") == "0"
    assert shown.page.evaluate("() => location.hash") == "#imports", "the address is the page's"


def test_a_large_page_is_to_be_seen_at_once(show: Show) -> None:
    """The best of three: other work of the machine delays a browser by seconds."""
    seconds = min(show("large").first_paint() for _ in range(3))
    assert seconds < FIRST_PAINT_S
