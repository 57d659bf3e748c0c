"""What all tests of this repository share: pytester, the ``gpu`` marker, a clean environment."""

from __future__ import annotations

import os
import signal

import pytest

pytest_plugins = ["pytester"]

# What a developer has set for sessions of their own. Most tests start sessions, which must come out
# the same on every machine. The plugin's internal variables start with an underscore and stay.
_DEVELOPERS_OWN = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_CUDA_FORK_", "FORCE_COLOR")
# With one of these pytest shortens nothing, and hypothesis keeps no database.
_SERVERS_OWN = ("CI", "BUILD_NUMBER", "TF_BUILD", "GITHUB_ACTIONS")
_DRIVER_DEVICE = "/dev/nvidiactl"


def pytest_configure(config: pytest.Config) -> None:
    """Hide the settings of the developer and of a CI server from the sessions that tests start."""
    hidden = {
        name: os.environ[name]
        for name in os.environ
        if name.startswith(_DEVELOPERS_OWN) or name in _SERVERS_OWN
    }
    for name in hidden:
        del os.environ[name]
    # Ignored where a shell has started this in the background, or nohup. The sessions that tests
    # interrupt or hang up on would inherit it.
    heard = {signal.SIGINT: signal.default_int_handler}
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, heard.get(number, signal.SIG_DFL))
    config.add_cleanup(lambda: os.environ.update(hidden))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need a GPU where there is none; asks only the file system."""
    if os.path.exists(_DRIVER_DEVICE):
        return
    reason = f"needs an NVIDIA GPU and its driver ({_DRIVER_DEVICE} is not there)"
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
