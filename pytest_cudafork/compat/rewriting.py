"""Keeps pytest from rewriting the modules of this plugin, whose asserts nobody reads.

pytest loads each module of a plugin's distribution by way of ``AssertionRewritingHook``, from files
of compiled code of its own. Where it may write none (``PYTHONDONTWRITEBYTECODE``, as in many images
of containers, or a folder that cannot be written to), it compiles all of them in each session.
"""

import sys

from _pytest.assertion.rewrite import AssertionRewritingHook


def leave_as_written(package: str) -> None:
    """Let the modules of a package be imported as Python does it from now on."""
    for finder in sys.meta_path:
        if isinstance(finder, AssertionRewritingHook):
            getattr(finder, "_must_rewrite", set()).discard(package)
            getattr(finder, "_marked_for_rewrite_cache", {}).clear()
