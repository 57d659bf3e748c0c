"""Tests of which processes look after the health of their GPUs."""

from __future__ import annotations

import sys

import pytest

from pytest_cudafork.health import plugin

NAMES = ("cudafork-health", "cudafork-health-summary")


def configured(pytester: pytest.Pytester, *args: str) -> pytest.Config:
    """A session's configuration, with the plugin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        return pytester.parseconfigure("-p", "pytest_cudafork.plugin", *args)


@pytest.mark.parametrize(
    ("option", "hooks", "summary", "shared"),
    [
        (None, False, True, True),
        ("off", False, False, False),
        ("fail", True, True, True),
        ("recover", True, True, True),
    ],
)
def test_a_process_asks_if_the_session_says_so_or_if_tests_share_it(
    pytester: pytest.Pytester, option: str | None, hooks: bool, summary: bool, shared: bool
) -> None:
    config = configured(pytester, *([f"--cuda-fork-health={option}"] if option else []))
    manager = config.pluginmanager
    assert [manager.has_plugin(name) for name in NAMES] == [hooks, summary]
    plugin.begin(config)
    for _ in range(2):
        plugin.look_after_shared_process(config)
    assert manager.has_plugin("cudafork-health") is shared


@pytest.mark.parametrize(
    ("args", "imported"),
    [
        ((), False),
        (("--cuda-fork-isolate-scope=test",), False),
        (("--cuda-fork-isolate-scope=module",), True),
        (("--cuda-fork-isolate-scope=module", "--cuda-fork-health=off"), False),
    ],
)
def test_what_a_shared_process_needs_is_imported_before_it_is_forked(
    pytester: pytest.Pytester,
    args: tuple[str, ...],
    imported: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = configured(pytester, *args)
    monkeypatch.delitem(sys.modules, "pytest_cudafork.health.hooks", raising=False)
    plugin.prepare_for_shared_processes(config)
    assert ("pytest_cudafork.health.hooks" in sys.modules) is imported
