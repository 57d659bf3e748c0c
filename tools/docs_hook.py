"""Makes links that leave ``docs/`` lead to the repository, where there is one: a hook of MkDocs.

On a page of the site a link such as ``../../CONTRIBUTING.md`` leads nowhere. With an address under
``Source`` in ``[project.urls]`` of pyproject.toml it leads there; without one its text stays.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)\s]+)\)")


def source() -> str:
    """Return the address of the repository, or ""."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project.get("urls", {}).get("Source", ""))


def rewritten(markdown: str, page: str, address: str) -> str:
    """Return a page's text, with no link that leaves ``docs/``; ``page`` is its path below that."""

    def replace(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link[2]))
        if target.startswith("docs/"):
            return link[0]
        return f"[{link[1]}]({address}/blob/main/{target})" if address else link[1]

    return _LINK.sub(replace, markdown)


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Rewrite the links of a page; called by MkDocs."""
    return rewritten(markdown, page.file.src_uri, source())
