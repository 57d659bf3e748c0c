"""A headless Chromium of this machine, driven by Playwright, and what a page did in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW_TO_INSTALL = (
    "there is no Chromium on the path (" + ", ".join(NAMES) + "). Install one: apt-get install "
    "chromium on Debian, apt-get install chromium-browser or snap install chromium on Ubuntu, "
    "dnf install chromium on Fedora"
)
_SETTLED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def executable() -> str:
    """Return the path of a Chromium, or ""."""
    return next(filter(None, map(shutil.which, NAMES)), "")


@contextmanager
def browser() -> Iterator[Any]:
    """Give a headless Chromium.

    Raises:
        FileNotFoundError: There is none; the error says how to install one.

    """
    from playwright.sync_api import sync_playwright

    if not executable():
        raise FileNotFoundError(HOW_TO_INSTALL)
    with sync_playwright() as playwright:
        # Its sandbox does not work for root, nor in most containers; what it shows is ours.
        started = playwright.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()


class Shown:
    """A page in a tab, with what it did that it must not do.

    Args:
        chromium: The browser.
        path: The file to show.
        options: Of the tab: its size, its theme.

    """

    def __init__(self, chromium: Any, path: Path, **options: Any) -> None:
        self.page = chromium.new_page(**{"viewport": {"width": 1300, "height": 850}, **options})
        self.complaints: list[str] = []
        """Errors and messages in the console, dialogs."""
        self.requests: list[str] = []
        """The addresses that were asked for."""
        note = self.complaints.append
        self.page.on("console", lambda message: note(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: note(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (note(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.address = path.as_uri()
        self.page.goto(self.address)

    def settle(self) -> None:
        """Wait until what was done is drawn."""
        self.page.evaluate(_SETTLED)

    def press(self, *keys: str) -> None:
        """Press keys, one after another."""
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def search(self, words: str) -> None:
        """Search by the keyboard, and wait until it has been done."""
        self.press("/")
        self.page.keyboard.type(words)
        self.page.wait_for_timeout(200)
        self.settle()

    @property
    def section(self) -> str:
        """The section that is shown."""
        shown = "[...document.querySelectorAll('main > section')].filter((s) => s.offsetParent)"
        (name,) = self.page.evaluate(f"() => {shown}.map((section) => section.id)")
        return str(name)

    def rows(self) -> list[str]:
        """Return the first line of each row that is shown."""
        found: list[str] = self.page.evaluate(
            "() => [...document.querySelectorAll('section.shown [data-row]')]"
            ".filter((row) => !row.hidden)"
            ".map((row) => (row.querySelector('.name, .lane-name') || row).textContent.trim())"
        )
        return found

    def focused(self) -> str:
        """Return the text of the row that has the focus, or ""."""
        return str(
            self.page.evaluate(
                "() => { const row = document.activeElement.closest('[data-row]');"
                " const name = row && (row.querySelector('.name, .lane-name') || row);"
                " return name ? name.textContent.trim() : '' }"
            )
        )

    def ground(self, selector: str = "body") -> str:
        """Return the colour behind an element: the root's where it has none."""
        script = "(s) => getComputedStyle(document.querySelector(s)).backgroundColor"
        return str(self.page.evaluate(script, selector))

    def first_paint(self) -> float:
        """Return when something of the page was first to be seen, in seconds."""
        script = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
        return float(self.page.evaluate(script)) / 1000

    def check(self) -> None:
        """Check that the page did nothing that it must not do, and close it."""
        assert self.complaints == []
        assert self.requests == [self.address]
        self.page.close()
