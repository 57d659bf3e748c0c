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


def prepare_for_shared_processes(config: pytest.Config) -> None:
    """Import what ``look_after_shared_process`` needs, where processes are forked from this one.

    Only where the session says that they are shared: else most of them are a single test's.
    """
    session = config.stash.get(SESSION, None)
    if session is None or session.settings.health == "off":
        return
    if session.settings.isolate_scope not in (None, "test"):
        import pytest_cudafork.health.hooks  # noqa: F401
        from pytest_cudafork.observe.driver.native_libs import loaded_libraries

        loaded_libraries()


def _register_hooks(config: pytest.Config, mode: str, *, isolated: bool) -> None:
    from pytest_cudafork.health.hooks import HealthHooks

    config.pluginmanager.register(HealthHooks(mode, isolated=isolated), _HOOKS)
