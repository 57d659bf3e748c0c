"""Fresh interpreters that are started ahead of the tests they are meant for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.isolate.groups import scope_of
from pytest_cudafork.isolate.session.request import (
    SPAWNED_TESTS,
    session_request,
    target_of,
)
from pytest_cudafork.process import launch, supervision
from pytest_cudafork.process.descendants.caretaker_client import Caretaker
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.markers import child_env

_VOLATILE = (environment.TEST, environment.PHASE, environment.FORK_OK)
"""Variables that differ from test to test and that no import looks at."""


class Spares:
    """Fresh interpreters, each with the file of one test imported, waiting for its turn."""

    def __init__(self, config: pytest.Config, caretaker: Caretaker | None = None) -> None:
        self._config = config
        self._caretaker = caretaker
        self._limit = launch.usable_cores() - 1
        """How many may wait: one for each core that nobody uses while a test runs."""
        self._waiting: dict[pytest.Item, tuple[launch.Running, dict[str, str]]] = {}

    def prepare(self, upcoming: Sequence[pytest.Item]) -> None:
        """Start interpreters for the next of these tests, as many as may wait."""
        wanted = upcoming[: self._limit]
        for item in [one for one in self._waiting if one not in wanted]:
            supervision.Supervisor(self._waiting.pop(item)[0]).kill()
        for item in wanted:
            if item in self._waiting or child_env(item):
                continue
            try:
                request = session_request(self._config, [_target(item)])
                running = launch.start_spawn(SPAWNED_TESTS, request, caretaker=self._caretaker)
                self._waiting[item] = (running, _environment())
            except OSError:  # no process left; the test will say so when its turn comes
                return

    def take(self, item: pytest.Item, env: dict[str, str]) -> launch.Running | None:
        """Return the interpreter for a test, if there is one and its world is still the same."""
        waiting = self._waiting.pop(item, None)
        if waiting is None:
            return None
        running, environment = waiting
        if env or environment != _environment() or running.has_ended:
            supervision.Supervisor(running).kill()
            return None
        return running

    def descriptors(self) -> list[int]:
        """Return what leads to the waiting interpreters."""
        return [running.sock.fileno() for running, *_ in self._waiting.values()]

    def close(self) -> None:
        """End those that were not needed."""
        for running, _ in self._waiting.values():
            supervision.Supervisor(running).kill()
        self._waiting.clear()


def _target(item: pytest.Item) -> str:
    """Return what to collect: the whole file for a test that may share its process."""
    target = target_of(item)
    return target if scope_of(item) == "test" else target.partition("::")[0]


def _environment() -> dict[str, str]:
    """Return the environment as far as imports may depend on it."""
    return {key: value for key, value in os.environ.items() if key not in _VOLATILE}
