"""How to install this package anew, so that its native libraries are built.

An index has another release than a checkout that was installed, if it has any; pip has written
down (``direct_url.json``) from where it was.
"""

from __future__ import annotations

import importlib.metadata
import json
import shlex
from typing import Any
from urllib.parse import unquote, urlsplit

from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.distributions import text

_NAME = "pytest-cudafork"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def how_to_reinstall() -> str:
    """Return the command of pip."""
    try:
        source = _checkout(importlib.metadata.distribution(_NAME), _PACKAGE)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ImportError):
        source = ""  # metadata that are not there, are broken, or know no folder
    source = source or f"--no-binary={_NAME} {_NAME}"
    return f"pip install --force-reinstall --no-deps {source}"


def _checkout(distribution: importlib.metadata.Distribution, package: str) -> str:
    """Return the folder from which a distribution was installed, as an argument; "" for none.

    Args:
        distribution: Its metadata, which may be of another installation.
        package: The folder of the package that is in use.

    """
    told: Any = json.loads(text(distribution, "direct_url.json"))
    url = urlsplit(told["url"])
    editable = told["dir_info"].get("editable", False)
    folder = unquote(url.path)
    holder = folder if editable else str(distribution.locate_file(""))
    if url.scheme != "file" or os.path.realpath(holder) != os.path.realpath(
        os.path.dirname(package)
    ):
        return ""
    return ("-e " if editable else "") + shlex.quote(folder)
