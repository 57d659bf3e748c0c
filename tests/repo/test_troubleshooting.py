"""The troubleshooting page has each message that `explain` knows, as its tables say it."""

from __future__ import annotations

import pytest

from pytest_cudafork.explain.messages import MESSAGES
from tools import write_troubleshooting
from tools.write_troubleshooting import PAGE, written


def test_the_page_is_what_the_tables_say() -> None:
    again = "run `python tools/write_troubleshooting.py`"
    assert PAGE.read_text(encoding="utf-8") == written(), again


def test_a_message_that_the_page_lacks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    new = MESSAGES[0]._replace(words="words that are new")
    monkeypatch.setattr(write_troubleshooting, "MESSAGES", (*MESSAGES, new))
    assert PAGE.read_text(encoding="utf-8") != written()
    assert "| `words that are new` | torch |" in written()
