"""On the site no link leaves the docs for a place that is not there."""

from __future__ import annotations

import pytest

from tools.docs_hook import rewritten


@pytest.mark.parametrize(
    ("text", "address", "expected"),
    [
        ("[a](../../CONTRIBUTING.md)", "", "a"),
        (
            "[a](../../CONTRIBUTING.md)",
            "https://host/x",
            "[a](https://host/x/blob/main/CONTRIBUTING.md)",
        ),
        ("[a](../reference/options.md#x)", "", "[a](../reference/options.md#x)"),
        ("[a](other.md) and [b](../../tools/x.py)", "", "[a](other.md) and b"),
    ],
)
def test_links_that_leave_the_docs(text: str, address: str, expected: str) -> None:
    assert rewritten(text, "how-to/page.md", address) == expected
