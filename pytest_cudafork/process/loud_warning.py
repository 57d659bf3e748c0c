"""Warnings of what no test's report can tell, as the death of a server between two tests."""

from __future__ import annotations

import warnings


def loud_warning(warning: Warning) -> None:
    """Warn of what no test's report can tell.

    It is shown even where warnings are errors: here it would end the session.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(warning, stacklevel=3)
