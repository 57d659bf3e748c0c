"""Which processes look after the health of their GPUs: as the option says, and shared ones."""

from __future__ import annotations

import pytest

from pytest_cudafork.check.session import SESSION

_HOOKS, _SUMMARY = "cudafork-health", "cudafork-health-summary"


def begin(config: pytest.Config) -> None:
    """Register what asks after each test, if the session is to ask, and what sums it up."""
    session = config.stash[SESSION]
    mode = session.settings.health
    if mode == "off" or config.pluginmanager.has_plugin(_SUMMARY):
        return
    from pytest_cudafork.health.summary import HealthSummary

    config.pluginmanager.register(HealthSummary(), _SUMMARY)
    if mode is not None:
        _register_hooks(config, mode, isolated=session.isolated)


def look_after_shared_process(config: pytest.Config) -> None:
    """Have this process of several isolated tests asked after each of them, unless told not to."""
    session = config.stash.get(SESSION, None)
    if session is None:  # a session without the plugin: it has asked for nothing
        return
    if session.settings.health != "off" and not config.pluginmanager.has_plugin(_HOOKS):
        _register_hooks(config, "recover", isolated=True)


def _register_hooks(config: pytest.Config, mode: str, *, isolated: bool) -> None:
    from pytest_cudafork.health.hooks import HealthHooks

    config.pluginmanager.register(HealthHooks(mode, isolated=isolated), _HOOKS)
