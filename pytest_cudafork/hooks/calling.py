"""Calls the hooks of other plugins, one plugin at a time: a broken one breaks nothing else."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

_OUTCOMES = (pytest.fail.Exception, pytest.skip.Exception)
"""What pytest's own functions raise is no Exception, and stands for nothing outside a test."""


class HookFailure(NamedTuple):
    """A hook that raised: its name, the plugin's line as ``path:line``, and the words."""

    hook: str
    where: str
    words: str

    def line(self) -> str:
        """Tell it in one line."""
        return f"{self.where}: {self.hook} raised {self.words}"


def call_each(
    config: pytest.Config, name: str, arguments: Mapping[str, object], *, hooks: Any = None
) -> Iterator[tuple[Any, HookFailure | None]]:
    """Call a hook for each plugin that has it, and yield what each returned, or how it failed.

    ``pytest.exit`` and an interrupt pass.

    Args:
        config: The session's configuration.
        name: The hook.
        arguments: What the hook takes, by name.
        hooks: Whose plugins count, such as ``item.ihook``; None: those of the whole session.

    """
    manager = config.pluginmanager
    plugins = [each.plugin for each in getattr(hooks or config.hook, name).get_hookimpls()]
    for plugin in dict.fromkeys(reversed(plugins)):  # as pluggy: the last one first
        others = [each for each in manager.get_plugins() if each is not plugin]
        caller = manager.subset_hook_caller(name, remove_plugins=others)
        try:
            result = caller(**arguments)
        except pytest.exit.Exception:
            raise
        except (Exception, *_OUTCOMES) as error:
            yield None, failure_of(name, plugin, error)
        else:
            yield result, None


def has_hook(config: pytest.Config, name: str) -> bool:
    """Whether any plugin has a hook."""
    return bool(getattr(config.hook, name).get_hookimpls())


def failure_of(name: str, plugin: object, error: BaseException) -> HookFailure:
    """Return what to tell of an error that a plugin's hook has raised: the innermost line of it."""
    file = getattr(plugin, "__file__", None) or ""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file] or frames
    where = f"{own[-1].filename}:{own[-1].lineno}" if own else str(plugin)
    words = "".join(traceback.format_exception_only(error)).strip()
    return HookFailure(name, where, words)
