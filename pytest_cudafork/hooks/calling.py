"""Calls the hooks of other plugins, one plugin at a time: a broken one breaks nothing else."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from pytest_cudafork.compat import tracebacks
from pytest_cudafork.compat.pytest_reports import ENDS_SESSION


class HookFailure(NamedTuple):
    """A hook that failed.

    Attributes:
        hook: Its name.
        where: The plugin's line, as ``path:line``.
        words: The error that it raised, or what it returned.
        raised: Whether it raised; else it returned something that stands for nothing.

    """

    hook: str
    where: str
    words: str
    raised: bool = True

    def line(self) -> str:
        """Tell it in one line."""
        return f"{self.where}: {self.hook} {'raised' if self.raised else 'returned'} {self.words}"


def call_each(
    config: pytest.Config, name: str, arguments: Mapping[str, object], *, hooks: Any = None
) -> Iterator[tuple[Any, HookFailure | None]]:
    """Call a hook for each plugin that has it, and yield what each returned, or how it failed.

    ``pytest.exit`` and an interrupt pass. A generator or a coroutine is a failure, because nothing
    of it has run.

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
        except ENDS_SESSION:
            raise
        except BaseException as error:  # SystemExit and what pytest's functions raise, too
            yield None, failure_of(name, plugin, error)
        else:
            failure = _not_run(name, result)
            yield (None if failure else result), failure


def _not_run(name: str, result: object) -> HookFailure | None:
    """Return what to tell of a hook that was called and did not run; None of one that did."""
    for answer in result if isinstance(result, list) else [result]:
        if inspect.isgenerator(answer):
            kind, code = "a generator, because it has a yield", answer.gi_code
        elif inspect.iscoroutine(answer):
            kind, code = "a coroutine, because it is async", answer.cr_code
        elif inspect.isasyncgen(answer):
            kind, code = "an asynchronous generator", answer.ag_code
        else:
            continue
        if inspect.iscoroutine(answer):
            answer.close()  # Python would warn that nobody has awaited it
        where = f"{code.co_filename}:{code.co_firstlineno}"
        return HookFailure(name, where, f"{kind}; nothing of it ran", raised=False)
    return None


def has_hook(config: pytest.Config, name: str) -> bool:
    """Whether any plugin has a hook."""
    return bool(getattr(config.hook, name).get_hookimpls())


def failure_of(name: str, plugin: object, error: BaseException) -> HookFailure:
    """Return what to tell of an error that a plugin's hook has raised: the innermost line of it."""
    file = getattr(plugin, "__file__", None) or ""
    frames = error.__traceback__
    own = tracebacks.innermost(frames, lambda filename: filename == file)
    place = own or tracebacks.innermost(frames)
    where = f"{place[0]}:{place[1]}" if place is not None else str(plugin)
    words = "".join(traceback.format_exception_only(error)).strip()
    return HookFailure(name, where, words)
