"""One test for each name that other packages do not promise to keep.

A test fails with a sentence when a release drops such a name: it says what of the plugin has to do
without.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any


def require(distribution: str, owner: Any, name: str, needed_for: str) -> Any:
    """Return an attribute of an object of another package; fail with words if it is gone.

    Args:
        distribution: The package's name, as pip knows it.
        owner: Where the attribute is looked for.
        name: The attribute, or several with dots between.
        needed_for: What the plugin does with it.

    """
    found = owner
    for part in name.split("."):
        assert hasattr(found, part), (
            f"{distribution} {_version(distribution)} no longer has {name!r} in {owner!r}, which "
            f"the plugin uses for {needed_for}: pytest_cudafork/compat has to do without."
        )
        found = getattr(found, part)
    return found


def _version(distribution: str) -> str:
    if distribution == "Python":
        import platform

        return platform.python_version()
    return importlib.metadata.version(distribution)
