"""How to install this package anew, so that its native libraries are built.

An index has another release than a checkout that was installed, if it has any; pip has written
down (``direct_url.json``) from where it was.
"""

from __future__ import annotations

import importlib.metadata
import shlex

from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.distributions import source_of, text

_NAME = "pytest-cudafork"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def how_to_reinstall() -> str:
    """Return the command of pip."""
    try:
        source = _checkout(importlib.metadata.distribution(_NAME), _PACKAGE)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ImportError):
        source = ""  # metadata that are not there, or are broken
    source = source or f"--no-binary={_NAME} {_NAME}"
    return f"pip install --force-reinstall --no-deps {source}"


def _checkout(distribution: importlib.metadata.Distribution, package: str) -> str:
    """Return the folder from which a distribution was installed, as an argument; "" for none.

    Args:
        distribution: Its metadata, which may be of another installation.
        package: The folder of the package that is in use.

    """
    source = source_of(text(distribution, "direct_url.json"))
    if source is None:
        return ""
    holder = source.folder if source.editable else str(distribution.locate_file(""))
    if os.path.realpath(holder) != os.path.realpath(os.path.dirname(package)):
        return ""
    return ("-e " if source.editable else "") + shlex.quote(source.folder)
