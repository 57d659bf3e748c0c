"""Whether another plugin that is a module takes part in a session."""

from __future__ import annotations

import sys

import pytest


def takes_part(config: pytest.Config, module: str) -> bool:
    """Whether the plugin of this name was imported and is registered; it is not imported here."""
    plugin = sys.modules.get(module)
    return plugin is not None and config.pluginmanager.is_registered(plugin)
