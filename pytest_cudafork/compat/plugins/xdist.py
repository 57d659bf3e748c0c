"""What the plugin uses of pytest-xdist that has no public name."""

from __future__ import annotations

from typing import Any

import pytest


def why_given_up(config: pytest.Config) -> str:
    """Say why the controller deals out no more tests, though pytest is told of no early end.

    ``DSession._summary_report``: too many workers have crashed (``--max-worker-restart``).
    """
    controller: Any = config.pluginmanager.get_plugin("dsession")
    return str(getattr(controller, "_summary_report", None) or "")
